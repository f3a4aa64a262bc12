package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Validate tells what is wrong with p as a whole, passwords apart, which are
// not always known. It returns the first problem as an *egress.Fault that
// names the attribute, looking at clients by name.
func Validate(p egress.Proxy) error {
	if err := validatePort(p.HTTPPort); err != nil {
		return fault("proxy.http_port", err, "Choose a port from 1 to 65535, such as 3128.")
	}
	if len(p.Clients) == 0 {
		return fault("proxy.clients", errors.New("there are no clients, so the proxy would be open to everyone who reaches it"),
			"Declare at least one client with a password.")
	}
	for _, name := range slices.Sorted(maps.Keys(p.Clients)) {
		if err := ValidateUser(name); err != nil {
			return fault(clientAttribute(name), err, "Choose another name for the client.")
		}
		for _, pattern := range p.Clients[name].AllowDomains {
			if err := ValidateDomain(pattern); err != nil {
				return fault(clientAttribute(name)+".allow_domains", err, domainRemedy)
			}
		}
	}
	switch p.Policy.Default {
	case egress.Deny, egress.Allow, "":
	default:
		return fault("proxy.policy.default", fmt.Errorf("%q is not a verdict", string(p.Policy.Default)), `Use "deny" or "allow".`)
	}
	for _, pattern := range p.Policy.AllowDomains {
		if err := ValidateDomain(pattern); err != nil {
			return fault("proxy.policy.allow_domains", err, domainRemedy)
		}
	}
	for _, port := range p.Policy.AllowPorts {
		if err := validatePort(port); err != nil {
			return fault("proxy.policy.allow_ports", err, "Choose ports from 1 to 65535.")
		}
	}
	return nil
}

const domainRemedy = `Write "host.example.org" for one host or ".example.org" for a domain and all hosts below it.`

// ValidateDomain tells why pattern cannot be in a list of domains. A pattern
// is a host name ("a.example.org": that host alone) or a host name with a dot
// before it (".example.org": that domain and all below it), in lower case, by
// the limits of RFC 1035; underscores are taken because they occur in names
// that exist.
func ValidateDomain(pattern string) error {
	refuse := func(why string) error { return fmt.Errorf("%q is not a domain: %s", pattern, why) }
	host := strings.TrimPrefix(pattern, ".")
	switch {
	case host == "":
		return refuse("it names nothing")
	case strings.ContainsFunc(pattern, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return refuse("it holds white space or a control character")
	case strings.Contains(host, "*"):
		return refuse(`there are no wildcards; a dot at the beginning stands for the domain and all below it, as in ".example.org"`)
	case strings.Contains(host, "://"):
		return refuse("it is a URL; give the host name alone")
	case strings.Contains(host, "/"):
		return refuse("a path cannot be matched, since the proxy does not see it inside TLS, and CIDR ranges are not domains")
	case isAddress(strings.Trim(host, "[]")) || numericTail(host):
		return refuse("it is an IP address; only names can be listed")
	case strings.Contains(host, ":"):
		return refuse("it holds a port; ports are listed in allow_ports")
	case strings.ContainsFunc(host, func(r rune) bool { return r > 0x7f }):
		return refuse(`it holds characters beyond ASCII; write its punycode form, as in "xn--mnchen-3ya.example"`)
	case host != strings.ToLower(host):
		return refuse(fmt.Sprintf("it holds upper-case letters; write %q", strings.ToLower(pattern)))
	case strings.HasSuffix(host, "."):
		return refuse("it ends with a dot")
	case len(host) > 253:
		return refuse(fmt.Sprintf("it has %d characters; a name has at most 253", len(host)))
	case forbiddenName(host) && host == pattern:
		return refuse("it is the name of a cloud's metadata service, which is always refused")
	}
	for label := range strings.SplitSeq(host, ".") {
		if err := validateLabel(label); err != nil {
			return refuse(err.Error())
		}
	}
	return nil
}

var labelForm = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`)

func validateLabel(label string) error {
	switch {
	case label == "":
		return errors.New("it has two dots in a row")
	case len(label) > 63:
		return fmt.Errorf("its part %q has %d characters; a part has at most 63", label, len(label))
	case !labelForm.MatchString(label):
		return fmt.Errorf("its part %q may hold only letters, digits, underscores, and hyphens that are neither first nor last", label)
	}
	return nil
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// numericTail tells whether host ends in a number and is therefore one of the
// spellings of an IPv4 address ("127.1", "0x7f.1", "2130706433"), by the rule
// of the WHATWG URL standard.
func numericTail(host string) bool {
	last := host[strings.LastIndex(host, ".")+1:]
	return numberForm.MatchString(last)
}

var numberForm = regexp.MustCompile(`^([0-9]+|0[xX][0-9a-fA-F]*)$`)

var userForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]*$`)

// ValidateUser tells why name cannot be a client's name. A name has 1 to 64
// ASCII letters, digits and the characters . _ @ + -, beginning with a letter
// or a digit: all that stands for itself in Squid's configuration, in the
// users file and in a URL. Upper and lower case differ.
func ValidateUser(name string) error {
	refuse := func(why string) error { return fmt.Errorf("%q is not a client's name: %s", name, why) }
	switch {
	case name == "":
		return refuse("it is empty")
	case len(name) > 64:
		return refuse(fmt.Sprintf("it has %d bytes; a name has at most 64", len(name)))
	case strings.Contains(name, ":"):
		return refuse("a colon ends the name in the credentials a client sends")
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return refuse("it holds white space or a control character")
	case !userForm.MatchString(name):
		return refuse("it may hold only letters, digits and . _ @ + -, and begins with a letter or a digit")
	case strings.EqualFold(name, "REQUIRED"):
		return refuse("the word stands for every client in Squid's configuration")
	}
	return nil
}

func validatePort(port int) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("%d is not a TCP port", port)
	}
	return nil
}

func clientAttribute(name string) string { return "proxy.clients." + name }

func fault(attribute string, cause error, remedy string) *egress.Fault {
	return &egress.Fault{
		Kind:      egress.ErrPermanent,
		Doing:     "checking the proxy's configuration",
		Cause:     cause,
		Remedy:    remedy,
		Attribute: attribute,
	}
}
