package proxy

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// defaultPorts are allowed when the policy lists none.
var defaultPorts = []int{80, 443}

//go:embed squid.conf.tmpl
var squidText string

var squidTemplate = template.Must(template.New("squid.conf").Option("missingkey=error").Parse(squidText))

// squidInput is what the template prints. Each text in it has been validated,
// so that none can hold a space or a line break.
type squidInput struct {
	Port              int
	Users             string
	AllowByDefault    bool
	Ports             []int
	ForbiddenNames    []string
	ForbiddenPrefixes []string
	Shared            []string
	Clients           []squidClient
}

// squidClient is a client with domains of its own. ID is a number, since
// Squid limits what the name of an ACL may be and how long.
type squidClient struct {
	ID      int
	Name    string
	Domains []string
}

// SquidConfig renders the squid.conf of p, the same text for the same p,
// however its lists are ordered. It is accepted by Squid 5.7 and 6.
//
// The order of its rules is its meaning. Metadata names and forbidden
// addresses given as literals are refused to everyone; then whoever has no
// valid credentials gets 407; then come protocol, ports and domains, none of
// which needs DNS, so that a name the policy does not allow is never looked up
// and cannot carry data out; then what an allowed name resolves to; and only
// then the one rule that allows. CONNECT is allowed to every port of
// allow_ports, 80 included: plain HTTP and tunnels obey the same rules.
//
// Errors are those of Validate.
func SquidConfig(p egress.Proxy) (string, error) {
	if err := Validate(p); err != nil {
		return "", err
	}
	in := squidInput{
		Port:           p.HTTPPort,
		Users:          UsersPath,
		AllowByDefault: p.Policy.Default == egress.Allow,
		Ports:          allowedPorts(p.Policy),
		ForbiddenNames: forbiddenNames,
		Shared:         withoutCovered(p.Policy.AllowDomains),
	}
	for _, prefix := range forbiddenPrefixes {
		in.ForbiddenPrefixes = append(in.ForbiddenPrefixes, prefix.String())
	}
	for i, name := range slices.Sorted(maps.Keys(p.Clients)) {
		if domains := withoutCovered(p.Clients[name].AllowDomains); len(domains) > 0 {
			in.Clients = append(in.Clients, squidClient{ID: i + 1, Name: name, Domains: domains})
		}
	}
	var b strings.Builder
	if err := squidTemplate.Execute(&b, in); err != nil {
		return "", fmt.Errorf("rendering squid.conf: %w", err)
	}
	return b.String(), nil
}

// allowedPorts gives the policy's ports, sorted, or the default ones.
func allowedPorts(policy egress.Policy) []int {
	if len(policy.AllowPorts) == 0 {
		return defaultPorts
	}
	return slices.Compact(slices.Sorted(slices.Values(policy.AllowPorts)))
}

// withoutCovered sorts patterns and drops those that another one includes:
// Squid warns about, and some versions refuse, a list that has both
// ".example.org" and "a.example.org".
func withoutCovered(patterns []string) []string {
	sorted := slices.Compact(slices.Sorted(slices.Values(patterns)))
	return slices.DeleteFunc(slices.Clone(sorted), func(pattern string) bool {
		host, domain := strings.CutPrefix(pattern, ".")
		return slices.ContainsFunc(sorted, func(other string) bool {
			// A host covers no domain: "example.org" is less than ".example.org".
			return other != pattern && (!domain || strings.HasPrefix(other, ".")) && matches(other, host)
		})
	})
}

// matches tells whether a host name is what a pattern stands for, as Squid's
// dstdomain decides it. Both are in lower case.
func matches(pattern, host string) bool {
	if domain, ok := strings.CutPrefix(pattern, "."); ok {
		return host == domain || strings.HasSuffix(host, pattern)
	}
	return host == pattern
}
