package cloudinit

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

func TestNetworkConfigGivesEachInterfaceWhatItIsToHave(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	addresses := func(texts ...string) (out []netip.Addr) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	// A changed seed is another one: what stands here stays, byte for byte.
	for name, test := range map[string]struct {
		interfaces []egress.Interface
		want       string
	}{
		"one by DHCP": {[]egress.Interface{{Network: "default"}}, `version: 2
ethernets:
  primary:
    match:
      macaddress: "52:54:00:aa:00:00"
    dhcp4: true
    dhcp6: false
    dhcp-identifier: mac
`},
		"static addresses of both families": {[]egress.Interface{{
			Bridge: "br0", MTU: 9000,
			Addresses:   prefixes("192.0.2.7/24", "2001:db8::7/64"),
			Gateways:    addresses("192.0.2.1", "fe80::1"),
			Nameservers: addresses("192.0.2.53", "2001:db8::53"),
		}}, `version: 2
ethernets:
  primary:
    match:
      macaddress: "52:54:00:aa:00:00"
    dhcp4: false
    dhcp6: false
    addresses:
      - "192.0.2.7/24"
      - "2001:db8::7/64"
    routes:
      - to: "0.0.0.0/0"
        via: "192.0.2.1"
      - to: "::/0"
        via: "fe80::1"
    nameservers:
      addresses:
        - "192.0.2.53"
        - "2001:db8::53"
    mtu: 9000
`},
		"only the first has the way out, and boot waits for no other": {[]egress.Interface{
			{Network: "default"}, {Network: "lan", MTU: 1400}, {Macvtap: "eno1", Addresses: prefixes("198.51.100.7/25")},
		}, `version: 2
ethernets:
  primary:
    match:
      macaddress: "52:54:00:aa:00:00"
    dhcp4: true
    dhcp6: false
    dhcp-identifier: mac
  secondary1:
    match:
      macaddress: "52:54:00:aa:00:01"
    dhcp4: true
    dhcp6: false
    dhcp-identifier: mac
    dhcp4-overrides:
      use-routes: false
    mtu: 1400
    optional: true
  secondary2:
    match:
      macaddress: "52:54:00:aa:00:02"
    dhcp4: false
    dhcp6: false
    addresses:
      - "198.51.100.7/25"
    optional: true
`},
	} {
		macs := []string{"52:54:00:AA:00:00", "52:54:00:aa:00:01", "52:54:00:aa:00:02"}
		if diff := cmp.Diff(test.want, string(NetworkConfig(test.interfaces, macs))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
