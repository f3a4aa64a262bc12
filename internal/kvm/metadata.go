package kvm

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// metadataNamespace marks a domain as ours: libvirt keeps one element per
// namespace in a domain's <metadata> and never touches it.
const metadataNamespace = "https://github.com/egressproxy/terraform-provider-egressproxy/instance/v1"

// metadata is what we keep on a domain: everything about the instance that the
// domain's own XML cannot tell. It holds no secret.
type metadata struct {
	Unfinished bool
	// Beat changes again and again while the run that makes the instance is
	// alive; it means something only as long as Unfinished is set.
	Beat string
	// Adopted tells that others made the machine.
	Adopted    bool
	CreatedAt  time.Time // the zero time when adopted
	ConfigHash string
	Image      imageIdentity
	// Pool and Volumes are where the machine's own volumes are; empty when
	// adopted.
	Pool    string
	Volumes volumeNames
	// Interfaces are as they were wanted: the domain's XML does not tell static
	// addresses.
	Interfaces  []egress.Interface
	Tags        egress.Tags
	Proxy       *egress.Proxy
	HealthCheck egress.HealthCheck
	// UserDataVersion is Spec.UserDataVersion.
	UserDataVersion int64
}

// imageIdentity is what is kept of an egress.Image.
type imageIdentity struct {
	// Name is the image's key in the provider's images.
	Name string
	// SHA256 is the file's checksum; empty for a volume.
	SHA256 string
	// Volume is the name of the volume in the pool; empty for a file.
	Volume string
}

// newMetadata describes an instance whose creation begins now.
func newMetadata(spec egress.Spec, volumes volumeNames, now time.Time) metadata {
	return metadata{
		Unfinished:  true,
		CreatedAt:   now.UTC().Truncate(time.Second),
		ConfigHash:  spec.ConfigHash(),
		Image:       imageIdentity{Name: spec.KVM.Image.Name, SHA256: spec.KVM.Image.SHA256, Volume: spec.KVM.Image.Volume()},
		Pool:        spec.KVM.Pool,
		Volumes:     volumes,
		Interfaces:  spec.KVM.Interfaces,
		Tags:        spec.Tags,
		Proxy:       spec.Proxy,
		HealthCheck: spec.HealthCheck,

		UserDataVersion: spec.UserDataVersion,
	}
}

// metadataElement is metadata as it stands in the domain's XML. The namespace
// is written as the default one, since encoding/xml writes no prefixes; libvirt
// may hand it back either way.
type metadataElement struct {
	XMLName     xml.Name     `xml:"https://github.com/egressproxy/terraform-provider-egressproxy/instance/v1 instance"`
	Unfinished  bool         `xml:"unfinished,attr,omitempty"`
	Adopted     bool         `xml:"adopted,attr,omitempty"`
	Beat        string       `xml:"beat,omitempty"`
	Created     string       `xml:"created,omitempty"`
	ConfigHash  string       `xml:"config-hash"`
	Image       imageElement `xml:"image"`
	Pool        string       `xml:"pool"`
	Root        string       `xml:"root,omitempty"`
	Seed        string       `xml:"seed,omitempty"`
	Interfaces  string       `xml:"interfaces,omitempty"` // JSON of []egress.Interface
	Tags        []tagElement `xml:"tag"`
	Proxy       string       `xml:"proxy,omitempty"`        // JSON of egress.Proxy
	HealthCheck string       `xml:"health-check,omitempty"` // JSON of egress.HealthCheck

	UserDataVersion int64 `xml:"user-data-version,omitempty"`
}

type imageElement struct {
	Name   string `xml:"name,attr"`
	SHA256 string `xml:"sha256,attr,omitempty"`
	Volume string `xml:"volume,attr,omitempty"`
}

type tagElement struct {
	Key   string `xml:"key,attr"`
	Value string `xml:"value,attr"`
}

// encode gives the element to store. It refuses tags with characters that XML
// cannot carry, which would come back changed.
func (m metadata) encode() (string, error) {
	e := metadataElement{
		Unfinished: m.Unfinished,
		Adopted:    m.Adopted,
		Beat:       m.Beat,
		ConfigHash: m.ConfigHash,
		Image:      imageElement(m.Image),
		Pool:       m.Pool,
		Root:       m.Volumes.Root,
		Seed:       m.Volumes.Seed,

		UserDataVersion: m.UserDataVersion,
	}
	if !m.CreatedAt.IsZero() {
		e.Created = m.CreatedAt.Format(time.RFC3339)
	}
	for _, k := range slices.Sorted(maps.Keys(m.Tags)) {
		if !isXMLText(k) || !isXMLText(m.Tags[k]) {
			return "", &egress.Fault{Kind: egress.ErrPermanent, Doing: "storing tags on the domain", Attribute: "tags",
				Cause:  fmt.Errorf("tag %q = %q holds a control character or invalid UTF-8", k, m.Tags[k]),
				Remedy: "Use printable text in tag keys and values."}
		}
		e.Tags = append(e.Tags, tagElement{Key: k, Value: m.Tags[k]})
	}
	if m.Proxy != nil {
		text, err := json.Marshal(m.Proxy)
		if err != nil {
			return "", fmt.Errorf("encoding the proxy's configuration: %w", err)
		}
		e.Proxy = string(text)
	}
	if len(m.Interfaces) > 0 {
		text, err := json.Marshal(m.Interfaces)
		if err != nil {
			return "", fmt.Errorf("encoding the network interfaces: %w", err)
		}
		e.Interfaces = string(text)
	}
	text, err := json.Marshal(m.HealthCheck)
	if err != nil {
		return "", fmt.Errorf("encoding the health check: %w", err)
	}
	e.HealthCheck = string(text)
	out, err := xml.Marshal(e)
	if err != nil {
		return "", fmt.Errorf("encoding the domain's metadata: %w", err)
	}
	return string(out), nil
}

// errForeign says that a domain carries no metadata of ours.
var errForeign = errors.New("the domain was not made by this provider")

// parseMetadata finds our element in the content of a domain's <metadata>,
// which may hold those of other tools too. It returns errForeign when there is
// none.
func parseMetadata(content string) (metadata, error) {
	decoder := xml.NewDecoder(strings.NewReader(content))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return metadata{}, errForeign
		}
		if err != nil {
			return metadata{}, fmt.Errorf("reading the domain's metadata: %w", err)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if start.Name.Space != metadataNamespace || start.Name.Local != "instance" {
			if err := decoder.Skip(); err != nil {
				return metadata{}, fmt.Errorf("reading the domain's metadata: %w", err)
			}
			continue
		}
		var e metadataElement
		if err := decoder.DecodeElement(&e, &start); err != nil {
			return metadata{}, fmt.Errorf("reading the domain's metadata: %w", err)
		}
		return e.decode()
	}
}

func (e metadataElement) decode() (metadata, error) {
	m := metadata{
		Unfinished: e.Unfinished,
		Adopted:    e.Adopted,
		Beat:       e.Beat,
		ConfigHash: e.ConfigHash,
		Image:      imageIdentity(e.Image),
		Pool:       e.Pool,
		Volumes:    volumeNames{Root: e.Root, Seed: e.Seed},
		Tags:       make(egress.Tags, len(e.Tags)),

		UserDataVersion: e.UserDataVersion,
	}
	if e.Created != "" || !e.Adopted {
		created, err := time.Parse(time.RFC3339, e.Created)
		if err != nil {
			return metadata{}, fmt.Errorf("reading the creation time in the domain's metadata: %w", err)
		}
		m.CreatedAt = created
	}
	for _, t := range e.Tags {
		m.Tags[t.Key] = t.Value
	}
	if e.Interfaces != "" {
		if err := json.Unmarshal([]byte(e.Interfaces), &m.Interfaces); err != nil {
			return metadata{}, fmt.Errorf("reading the network interfaces in the domain's metadata: %w", err)
		}
	}
	if e.Proxy != "" {
		m.Proxy = new(egress.Proxy)
		if err := json.Unmarshal([]byte(e.Proxy), m.Proxy); err != nil {
			return metadata{}, fmt.Errorf("reading the proxy's configuration in the domain's metadata: %w", err)
		}
	}
	if e.HealthCheck != "" {
		if err := json.Unmarshal([]byte(e.HealthCheck), &m.HealthCheck); err != nil {
			return metadata{}, fmt.Errorf("reading the health check in the domain's metadata: %w", err)
		}
	}
	return m, nil
}

// isXMLText tells whether s survives a round trip through XML: encoding/xml
// replaces what XML 1.0 (section 2.2) cannot carry.
func isXMLText(s string) bool {
	var escaped bytes.Buffer
	if err := xml.EscapeText(&escaped, []byte(s)); err != nil {
		return false
	}
	return !bytes.ContainsRune(escaped.Bytes(), '\uFFFD') && !strings.ContainsAny(s, "\r\n\t")
}
