package cloudinit

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// NetworkConfig gives a network configuration, version 2 (cloud-init's "Networking
// config Version 2"), for interfaces whose MAC addresses are macs, written
// "52:54:00:12:34:56" and in the same order.
//
// An interface without addresses asks for one by DHCP over IPv4 and identifies
// the machine by its MAC address alone: one that replaces another with the same
// MAC gets its lease. IPv6 is left to router advertisements. Only the first
// interface takes its default route from DHCP, and boot waits for no other.
func NetworkConfig(interfaces []egress.Interface, macs []string) []byte {
	var b strings.Builder
	b.WriteString("version: 2\nethernets:\n")
	for i, nic := range interfaces {
		name := "primary"
		if i > 0 {
			name = fmt.Sprintf("secondary%d", i)
		}
		fmt.Fprintf(&b, "  %s:\n    match:\n      macaddress: %q\n", name, strings.ToLower(macs[i]))
		if len(nic.Addresses) == 0 {
			b.WriteString("    dhcp4: true\n    dhcp6: false\n    dhcp-identifier: mac\n")
			if i > 0 {
				b.WriteString("    dhcp4-overrides:\n      use-routes: false\n")
			}
		} else {
			writeStatic(&b, nic)
		}
		if nic.MTU != 0 {
			fmt.Fprintf(&b, "    mtu: %d\n", nic.MTU)
		}
		if i > 0 {
			b.WriteString("    optional: true\n")
		}
	}
	return []byte(b.String())
}

// writeStatic writes fixed addresses. Default routes are written as networks,
// since not every renderer knows the word "default".
func writeStatic(b *strings.Builder, nic egress.Interface) {
	b.WriteString("    dhcp4: false\n    dhcp6: false\n    addresses:\n")
	for _, prefix := range nic.Addresses {
		fmt.Fprintf(b, "      - %q\n", prefix)
	}
	if len(nic.Gateways) > 0 {
		b.WriteString("    routes:\n")
		for _, via := range nic.Gateways {
			fmt.Fprintf(b, "      - to: %q\n        via: %q\n", everything(via), via)
		}
	}
	if len(nic.Nameservers) > 0 {
		b.WriteString("    nameservers:\n      addresses:\n")
		for _, server := range nic.Nameservers {
			fmt.Fprintf(b, "        - %q\n", server)
		}
	}
}

// everything is the network of all addresses of a's family.
func everything(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
