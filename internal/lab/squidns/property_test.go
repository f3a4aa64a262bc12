package squidns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

// Names of a small tree, so that random lists and random requests meet often.
var (
	tree  = []string{"a.test", "b.a.test", "c.b.a.test", "x.test", "y.x.test", "z-1.y.x.test", "a_b.test", "xn--mnchen-3ya.test", "ab.test"}
	extra = []string{
		public, bracketed(public6), "8.8.8.8", "134744072", "0x8.0x8.0x8.0x8", "10.0.0.5", "169.254.169.254", "[::1]", "[::ffff:8.8.8.8]", "[::ffff:10.0.0.5]",
		"B.A.test", "c.b.A.TEST.", "metadata.google.internal", "[2002:a00:5::1]", "[fd00::5]", "127.1",
	}
	someUsers = []string{"ci", "dev", "a.b@example-1", "x+y", "CI"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func randomDomains(r *rand.Rand) []string {
	var out []string
	for range r.IntN(4) {
		out = append(out, pick(r, []string{"", "."})+pick(r, tree))
	}
	return out
}

func randomProxy(r *rand.Rand) egress.Proxy {
	p := egress.Proxy{HTTPPort: port, Clients: map[string]egress.Client{}, Policy: egress.Policy{
		Default:      pick(r, []egress.Verdict{egress.Deny, egress.Deny, egress.Allow, ""}),
		AllowDomains: randomDomains(r),
	}}
	for range r.IntN(4) {
		p.Policy.AllowPorts = append(p.Policy.AllowPorts, pick(r, Ports))
	}
	for range 1 + r.IntN(3) {
		user := pick(r, someUsers)
		p.Clients[user] = egress.Client{Password: egress.NewSecret("secret of " + user), AllowDomains: randomDomains(r)}
	}
	return p
}

func TestPropertySquidDecidesAsAllowsDoes(t *testing.T) {
	const policies, requests = 12, 50
	for seed := range uint64(policies) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			in := internet(t)
			for _, name := range tree {
				in.Names[name] = [][]netip.Addr{{netip.MustParseAddr(public)}}
			}
			r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // repeatable on purpose
			p := randomProxy(r)
			s := squid(t, p)
			for range requests {
				user, host, port := pick(r, someUsers), pick(r, append(tree, extra...)), pick(r, Ports)
				who := Credentials{user, "secret of " + user}
				allowed := proxy.Allows(p, user, host, port)
				target := fmt.Sprintf("%s:%d", host, port)
				ask, what := Connect, target
				if r.IntN(2) == 0 {
					ask, what = Get, "http://"+target+"/"
				}
				got, err := ask(t.Context(), s.Addr, who, what)
				hold(t, err == nil && (got.Reached != "") == allowed, "%s as %q: %v (%v), Allows says %t\n%+v", what, user, got, err, allowed, p)
			}
		})
	}
}
