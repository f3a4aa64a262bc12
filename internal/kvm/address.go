package kvm

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

const (
	// agentTimeout bounds one question to a guest agent. It is well above the
	// 5 s after which libvirt itself gives an agent up, since a call that is
	// abandoned here costs its neighbours their connection.
	agentTimeout = 20 * time.Second
	// agentCalls is how many such questions a host gets at once.
	agentCalls = 2
)

// addressSources are asked in each round; the first that knows a usable address
// is believed. The agent knows what the guest has now; leases outlive the
// machine they were given to, and ARP entries outlive everything.
var addressSources = []struct {
	name   string
	source libvirt.DomainInterfaceAddressesSource
}{
	{"guest agent", libvirt.DomainInterfaceAddressesSrcAgent},
	{"DHCP lease", libvirt.DomainInterfaceAddressesSrcLease},
	{"ARP", libvirt.DomainInterfaceAddressesSrcArp},
}

// addressReport is what the sources of addresses said in one round.
type addressReport struct {
	found []netip.Addr
	// silent holds, for each source without a usable address, why.
	silent []string
}

// nic is a network interface as its addresses are looked for.
type nic struct {
	mac string
	// static are the addresses that the machine was told to take.
	static []netip.Addr
}

// nicsOf gives a domain's interfaces in their order.
func nicsOf(d domain) []nic {
	var out []nic
	if d.Devices == nil {
		return nil
	}
	for i, iface := range d.Devices.Interfaces {
		if iface.MAC == nil {
			continue
		}
		n := nic{mac: iface.MAC.Address}
		if len(d.meta.Interfaces) == len(d.Devices.Interfaces) {
			for _, prefix := range d.meta.Interfaces[i].Addresses {
				n.static = append(n.static, prefix.Addr())
			}
		}
		out = append(out, n)
	}
	return out
}

// addresses asks the guest agent, the DHCP leases of libvirt's networks and the
// host's ARP table. None of them is sure to answer (the agent may not run, a
// bridge has no leases, some hosts cannot read ARP), so what the daemon fails to
// tell is only noted. Only a host that cannot be asked is an error. Where all of
// them are silent, the static addresses hold.
func (h *host) addresses(ctx context.Context, dom libvirt.Domain, nics []nic) (addressReport, error) {
	found := make([][]netip.Addr, len(addressSources))
	failed := make([]error, len(addressSources))
	var group sync.WaitGroup
	for i, s := range addressSources {
		group.Go(func() { found[i], failed[i] = h.addressesFrom(ctx, dom, nics, s.source) })
	}
	group.Wait()
	var report addressReport
	for i, s := range addressSources {
		switch {
		case len(found[i]) > 0:
			report.found = found[i]
			return report, nil
		case failed[i] != nil:
			report.silent = append(report.silent, s.name+": "+saidByDaemon(failed[i]))
		default:
			report.silent = append(report.silent, s.name+": none yet")
		}
	}
	for _, err := range failed {
		if errors.Is(err, egress.ErrUnreachable) || ctx.Err() != nil {
			return report, h.fault("reading the addresses of domain "+dom.Name, errors.Join(failed...))
		}
	}
	for _, n := range nics {
		report.found = append(report.found, n.static...)
	}
	return report, nil
}

func (h *host) addressesFrom(ctx context.Context, dom libvirt.Domain, nics []nic, source libvirt.DomainInterfaceAddressesSource) ([]netip.Addr, error) {
	doing := "reading the addresses of domain " + dom.Name
	if source == libvirt.DomainInterfaceAddressesSrcAgent {
		select {
		case h.agents <- struct{}{}:
			defer func() { <-h.agents }()
		case <-ctx.Done():
			return nil, h.fault(doing, ctx.Err())
		}
		bounded, cancel := context.WithTimeoutCause(ctx, agentTimeout, errAgentSilent)
		defer cancel()
		ctx = bounded
	}
	reported, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) ([]libvirt.DomainInterface, error) {
		return lv.DomainInterfaceAddresses(dom, uint32(source), 0)
	})
	if errors.Is(context.Cause(ctx), errAgentSilent) { // the guest's fault, not the host's
		return nil, errAgentSilent
	}
	return usableAddresses(reported, nics), err
}

var errAgentSilent = errors.New("it does not answer")

// usableAddresses picks, from what one source reported, the addresses that
// clients can dial: those of interfaces with one of the domain's own MAC
// addresses, without loopback, link-local, multicast and unspecified ones. The
// guest agent reports all of those, and interfaces the guest made up itself.
// Those of the first interface come first.
func usableAddresses(reported []libvirt.DomainInterface, nics []nic) []netip.Addr {
	var out []netip.Addr
	for _, n := range nics {
		var own []netip.Addr
		for _, iface := range reported {
			if len(iface.Hwaddr) == 0 || !strings.EqualFold(n.mac, iface.Hwaddr[0]) {
				continue
			}
			for _, a := range iface.Addrs {
				addr, err := netip.ParseAddr(a.Addr)
				if err != nil {
					continue
				}
				addr = addr.Unmap().WithZone("")
				if addr.IsGlobalUnicast() {
					own = append(own, addr)
				}
			}
		}
		for _, addr := range orderAddresses(own) {
			if !slices.Contains(out, addr) {
				out = append(out, addr)
			}
		}
	}
	return out
}

// orderAddresses drops duplicates and puts IPv4 before IPv6, each in numeric
// order, so that two refreshes of an unchanged machine agree whichever source
// answered first.
func orderAddresses(addrs []netip.Addr) []netip.Addr {
	out := slices.Clone(addrs)
	slices.SortFunc(out, func(a, b netip.Addr) int {
		if a.Is4() != b.Is4() {
			if a.Is4() {
				return -1
			}
			return 1
		}
		return a.Compare(b)
	})
	return slices.Compact(out)
}
