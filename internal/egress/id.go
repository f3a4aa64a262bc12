package egress

import (
	"fmt"
	"regexp"
	"strings"
)

// Kind names a backend.
type Kind string

// The backends.
const (
	KVM        Kind = "kvm"
	GCP        Kind = "gcp"
	Kubernetes Kind = "kubernetes"
)

// ProviderID names one instance everywhere: it is the id attribute and the
// import ID. Its text is kvm://HOST/NAME, gcp://PROJECT/ZONE/NAME or
// kubernetes://NAMESPACE/NAME.
type ProviderID struct {
	// Backend is the kind of infrastructure the instance lives on.
	Backend Kind
	// Location is the host (kvm), "PROJECT/ZONE" (gcp) or the namespace
	// (kubernetes).
	Location string
	// Name is the instance's name.
	Name string
}

// String gives the ID's text; the zero ProviderID gives "".
func (id ProviderID) String() string {
	if id.IsZero() {
		return ""
	}
	return string(id.Backend) + "://" + id.Location + "/" + id.Name
}

// IsZero tells whether the ID names nothing.
func (id ProviderID) IsZero() bool { return id == ProviderID{} }

// forms gives, for each backend, how its IDs are written and the number of
// path segments between the scheme and the name.
var forms = map[Kind]struct {
	text     string
	segments int
}{
	KVM:        {"kvm://HOST/NAME", 1},
	GCP:        {"gcp://PROJECT/ZONE/NAME", 2},
	Kubernetes: {"kubernetes://NAMESPACE/NAME", 1},
}

// ParseProviderID reads an ID's text. The error states the expected form.
func ParseProviderID(s string) (ProviderID, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	form, known := forms[Kind(scheme)]
	if !ok || !known {
		return ProviderID{}, fmt.Errorf("%q is not an instance ID: expected kvm://HOST/NAME, gcp://PROJECT/ZONE/NAME or kubernetes://NAMESPACE/NAME", s)
	}
	parts := strings.Split(rest, "/")
	if len(parts) != form.segments+1 {
		return ProviderID{}, fmt.Errorf("%q is not an instance ID: expected %s", s, form.text)
	}
	for _, p := range parts {
		if !segment.MatchString(p) {
			return ProviderID{}, fmt.Errorf("%q is not an instance ID: %q is not a valid part of %s", s, p, form.text)
		}
	}
	return ProviderID{
		Backend:  Kind(scheme),
		Location: strings.Join(parts[:form.segments], "/"),
		Name:     parts[form.segments],
	}, nil
}

// segment is what a part of an ID may hold: anything printable without a
// slash. Backends have stricter rules for the names they create; an import of
// somebody else's object deserves a better answer than that its name is odd.
var segment = regexp.MustCompile(`^[^/\s\p{Cc}]+$`)
