package provider

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// failure is an operation on an instance that went wrong.
type failure struct {
	verb  string // create, read, update or delete: also the attribute of timeouts
	name  string // the instance's
	limit time.Duration
	// timedOut tells that the operation's own time limit ended it,
	// interrupted that Terraform did.
	timedOut, interrupted bool
	// kept tells that something of the instance exists and is in the state.
	kept bool
	err  error
}

// diagnose says what went wrong so that a person can act on it: what was being
// done where, what the other side said, the guest's last words, and what to do
// next. It is put at the attribute at fault where there is one.
func diagnose(f failure) diag.Diagnostic {
	summary := fmt.Sprintf("Unable to %s egress proxy %q", f.verb, f.name)
	detail, at := explain(f.err)
	switch {
	case f.interrupted:
		detail += "\n\nThe operation was interrupted. " + afterwards(f)
	case f.timedOut:
		detail += fmt.Sprintf("\n\nThe time limit of %s was reached. Raise timeouts.%s if it only needs longer. ", f.limit, f.verb) + afterwards(f)
	}
	detail = strings.TrimSpace(detail)
	if at.Equal(path.Empty()) {
		return diag.NewErrorDiagnostic(summary, detail)
	}
	return diag.NewAttributeErrorDiagnostic(at, summary, detail)
}

// afterwards says what became of the instance whose operation was cut short.
func afterwards(f failure) string {
	switch {
	case f.verb == "create" && f.kept:
		return "What exists of the instance is kept in the state, marked as tainted: the next apply replaces it, and destroy removes it."
	case f.verb == "create":
		return "Nothing of the instance was made."
	}
	return "The state is as it was: run the same command again."
}

// explain writes an error out: what went wrong, one thing a line, then what the
// faults among it have to add. It gives the first attribute that is at fault.
func explain(err error) (string, path.Path) {
	at := path.Empty()
	var lines, more []string
	for _, e := range joined(err) {
		fault, ok := errors.AsType[*egress.Fault](e)
		switch {
		case !ok:
			lines = append(lines, sentences(e.Error()))
			continue
		case e.Error() == fault.Error():
			lines = append(lines, faultLine(fault))
		default:
			lines = append(lines, sentences(e.Error()))
			more = append(more, faultLine(fault))
		}
		more = append(more, faultMore(fault)...)
		if at.Equal(path.Empty()) {
			at = attributePath(fault.Attribute)
		}
	}
	return strings.Join(append([]string{strings.Join(lines, "\n")}, more...), "\n\n"), at
}

// joined gives the errors that errors.Join put together, at any depth.
func joined(err error) []error {
	// It is about the error itself, not what it wraps. A fault and an error of
	// several %w unwrap to several, too, but say more than these do.
	several, ok := err.(interface{ Unwrap() []error })
	if !ok || several.Unwrap() == nil || err.Error() != errors.Join(several.Unwrap()...).Error() {
		return []error{err}
	}
	var out []error
	for _, e := range several.Unwrap() {
		out = append(out, joined(e)...)
	}
	return out
}

func faultLine(f *egress.Fault) string { return sentences("while " + f.Error()) }

// faultMore gives the console's last lines and the remedy.
func faultMore(f *egress.Fault) []string {
	var paragraphs []string
	if len(f.Console) > 0 {
		paragraphs = append(paragraphs, "The guest's console ended with:\n  "+strings.Join(f.Console, "\n  "))
	}
	if f.Remedy != "" {
		paragraphs = append(paragraphs, f.Remedy)
	}
	return paragraphs
}

// attributePath reads a dotted path like kvm.image. Under proxy.clients comes
// a user name, which may hold dots itself.
func attributePath(dotted string) path.Path {
	if dotted == "" {
		return path.Empty()
	}
	if rest, ok := strings.CutPrefix(dotted, "proxy.clients."); ok {
		clients := proxyPath.AtName("clients")
		for attribute := range clientTypes {
			if name, ok := strings.CutSuffix(rest, "."+attribute); ok {
				return clients.AtMapKey(name).AtName(attribute)
			}
		}
		return clients.AtMapKey(rest)
	}
	root, rest, more := strings.Cut(dotted, ".")
	at := path.Root(root)
	for more {
		var step string
		step, rest, more = strings.Cut(rest, ".")
		at = at.AtName(step)
	}
	return at
}
