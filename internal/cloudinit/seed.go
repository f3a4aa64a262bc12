package cloudinit

import (
	"bytes"
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
// The library stages the files in a temporary directory that only the calling
// user can enter; it is gone when ISO returns.
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
		if err := w.AddFile(bytes.NewReader(f.content), f.name); err != nil {
			return nil, fmt.Errorf("adding %s to the seed image: %w", f.name, err)
		}
	}
	var b bytes.Buffer
	if err := w.WriteTo(&b, VolumeLabel); err != nil {
		return nil, fmt.Errorf("writing the seed image: %w", err)
	}
	if rest := b.Len() % sector; rest != 0 {
		b.Write(make([]byte, sector-rest))
	}
	return b.Bytes(), nil
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

// NetworkConfigDHCP gives a network configuration, version 2, that asks for an
// IPv4 address by DHCP on the interface with the MAC address mac and identifies
// the machine by that address alone: one that replaces another with the same
// MAC gets its lease. mac is written "52:54:00:12:34:56"; IPv6 is left to router advertisements.
func NetworkConfigDHCP(mac string) []byte {
	return fmt.Appendf(nil, `version: 2
ethernets:
  primary:
    match:
      macaddress: %q
    dhcp4: true
    dhcp6: false
    dhcp-identifier: mac
`, strings.ToLower(mac))
}
