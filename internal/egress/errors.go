package egress

import (
	"errors"
	"strings"
)

// The kinds of error that a backend returns. Test them with errors.Is.
var (
	// ErrNotFound: the backend itself said that the object does not exist.
	ErrNotFound = errors.New("not found")
	// ErrAlreadyExists: another object has the name.
	ErrAlreadyExists = errors.New("already exists")
	// ErrTransient: the same call may succeed later.
	ErrTransient = errors.New("temporary failure")
	// ErrPermanent: the configuration is wrong; repeating cannot help.
	ErrPermanent = errors.New("permanent failure")
	// ErrQuotaExceeded: a limit of the backend is used up.
	ErrQuotaExceeded = errors.New("quota exceeded")
	// ErrUnreachable: the backend could not be asked.
	ErrUnreachable = errors.New("unreachable")
)

// Fault is an error with all that a person needs to act on it. Backends
// return it for everything that reaches a person.
type Fault struct {
	// Kind is one of the Err values of this package.
	Kind error
	// Doing says what was being done to which object, as a gerund phrase:
	// "creating overlay egressproxy-ci-root.qcow2 in pool default".
	Doing string
	// Host names where: the host's name in the configuration, a project/zone
	// or a namespace. Empty when no host was involved.
	Host string
	// Cause is what the other side said.
	Cause error
	// Remedy is one or more sentences on what to do next; may be empty.
	Remedy string
	// Attribute is the dotted path of the attribute at fault ("kvm.image"),
	// or empty when no single attribute is.
	Attribute string
	// Console holds the last lines of the guest's serial console, oldest
	// first, where they help to see why it died.
	Console []string
}

// Error gives one line: "DOING on host HOST: CAUSE".
func (f *Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.Doing)
	if f.Host != "" {
		b.WriteString(" on host " + f.Host)
	}
	if f.Cause != nil {
		b.WriteString(": " + f.Cause.Error())
	} else if f.Kind != nil {
		b.WriteString(": " + f.Kind.Error())
	}
	return b.String()
}

// Unwrap lets errors.Is see both the kind and the cause.
func (f *Fault) Unwrap() []error {
	var errs []error
	if f.Kind != nil {
		errs = append(errs, f.Kind)
	}
	if f.Cause != nil {
		errs = append(errs, f.Cause)
	}
	return errs
}
