package cloudinit

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/kdomanski/iso9660"
	"go.yaml.in/yaml/v3"
)

// VolumeLabel is the file system label by which cloud-init's NoCloud data
// source finds its disk.
const VolumeLabel = "cidata"

// sector is the size of an ISO 9660 logical block, in bytes.
const sector = 2048

// Seed is the disk that the NoCloud data source reads.
type Seed struct {
	// InstanceID tells first boots apart: cloud-init configures a machine once
	// for each.
	InstanceID string
	// Hostname is the machine's host name; may be empty.
	Hostname string
	// UserData, NetworkConfig and VendorData are written as they are. The
	// last two are left out when empty; without a network configuration
	// cloud-init asks for DHCP on the first interface.
	UserData, NetworkConfig, VendorData []byte
}

// ISO gives the seed as an ISO 9660 image, a whole number of 2 KiB sectors.
// Two calls differ in the volume's time stamps.
//
// The library stages files in a temporary directory, which outlives a process
// that is killed. Contents may be secret, so what is staged are stand-ins of the
// same lengths; the contents take their places in the finished image, in memory.
func (s Seed) ISO() (image []byte, err error) {
	metaData, err := s.metaData()
	if err != nil {
		return nil, err
	}
	w, err := iso9660.NewWriter()
	if err != nil {
		return nil, fmt.Errorf("staging the seed image: %w", err)
	}
	defer func() {
		if cleanupErr := w.Cleanup(); cleanupErr != nil {
			image, err = nil, errors.Join(err, fmt.Errorf("removing the staged seed image: %w", cleanupErr))
		}
	}()
	var staged []standIn
	for _, f := range []struct {
		name     string
		content  []byte
		optional bool
	}{
		{"meta-data", metaData, false},
		{"user-data", s.UserData, false},
		{"network-config", s.NetworkConfig, true},
		{"vendor-data", s.VendorData, true},
	} {
		if f.optional && len(f.content) == 0 {
			continue
		}
		file := newStandIn(f.content)
		if err := w.AddFile(bytes.NewReader(file.bytes), f.name); err != nil {
			return nil, fmt.Errorf("adding %s to the seed image: %w", f.name, err)
		}
		staged = append(staged, file)
	}
	var b bytes.Buffer
	if err := w.WriteTo(&b, VolumeLabel); err != nil {
		return nil, fmt.Errorf("writing the seed image: %w", err)
	}
	if rest := b.Len() % sector; rest != 0 {
		b.Write(make([]byte, sector-rest))
	}
	for _, file := range staged {
		if err := file.fill(b.Bytes()); err != nil {
			return nil, fmt.Errorf("writing the seed image: %w", err)
		}
	}
	return b.Bytes(), nil
}

// standIn takes a file's place while the image is built.
type standIn struct{ bytes, content []byte }

// standInLength is how many random bytes occur nowhere else in an image. A
// shorter content stands for itself: nothing secret is that short and still
// something cloud-init understands.
const standInLength = 32

func newStandIn(content []byte) standIn {
	if len(content) < standInLength {
		return standIn{content, content}
	}
	f := standIn{make([]byte, len(content)), content}
	_, _ = rand.Read(f.bytes) // never fails (crypto/rand documentation)
	return f
}

// fill puts the content in its place. ISO 9660 keeps a file's bytes together
// (ECMA-119, 6.4.1, for a file of one extent), so they are found in one piece.
func (f standIn) fill(image []byte) error {
	at := bytes.Index(image, f.bytes)
	if at < 0 {
		return errors.New("a file is not in it")
	}
	copy(image[at:], f.content)
	return nil
}

func (s Seed) metaData() ([]byte, error) {
	if strings.TrimSpace(s.InstanceID) == "" {
		return nil, errors.New("writing the seed's meta-data: the instance ID is empty")
	}
	text, err := yaml.Marshal(struct {
		InstanceID *yaml.Node `yaml:"instance-id"`
		Hostname   string     `yaml:"local-hostname,omitempty"`
	}{quoted(s.InstanceID), s.Hostname})
	if err != nil {
		return nil, fmt.Errorf("encoding the seed's meta-data: %w", err)
	}
	return text, nil
}
