package kvm

import (
	"context"
	"fmt"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
)

// host is one hypervisor and what this process knows of it.
type host struct {
	name string
	pool *connection.Pool
	// locks serialises work on one thing of this host, by a key such as
	// "instance/NAME" or "base/POOL/SHA256".
	locks keyedLocks

	// images is what this process knows of images, whatever the host.
	images *imageFacts
	// startPool is Config's.
	startPool bool

	log func(ctx context.Context, message string, fields map[string]any)
	// caps is under the lock "capabilities"; nil until asked for.
	caps *libvirtxml.Caps
	// agents are the calls to guest agents that may be in flight: a frozen
	// guest holds one for seconds, and must leave room for other calls.
	agents chan struct{}
}

// observe logs a call to the daemon when it has ended.
func (h *host) observe(ctx context.Context, doing string, call func() error) error {
	began := time.Now()
	err := call()
	h.log(ctx, doing, map[string]any{"host": h.name, "milliseconds": time.Since(began).Milliseconds(), "ok": err == nil})
	return err
}

// read makes a call that may be repeated and explains its failure. The answer
// goes through a channel, since a call that was given up may still answer later.
func read[T any](ctx context.Context, h *host, doing string, fn func(*libvirt.Libvirt) (T, error)) (T, error) {
	return ask(ctx, h, doing, h.pool.Read, fn)
}

// write makes one attempt at a call that changes something, and explains its
// failure.
func write[T any](ctx context.Context, h *host, doing string, fn func(*libvirt.Libvirt) (T, error)) (T, error) {
	return ask(ctx, h, doing, h.pool.Write, fn)
}

// do is write for a call without an answer.
func (h *host) do(ctx context.Context, doing string, fn func(*libvirt.Libvirt) error) error {
	return h.fault(doing, h.observe(ctx, doing, func() error { return h.pool.Write(ctx, doing, fn) }))
}

// attempt is connection.Pool's Read or Write.
type attempt func(context.Context, string, func(*libvirt.Libvirt) error) error

func ask[T any](ctx context.Context, h *host, doing string, call attempt, fn func(*libvirt.Libvirt) (T, error)) (T, error) {
	answers := make(chan T, 2) // the pool may repeat a call once
	err := h.observe(ctx, doing, func() error {
		return call(ctx, doing, func(lv *libvirt.Libvirt) error {
			answer, err := fn(lv)
			if err == nil {
				answers <- answer
			}
			return err
		})
	})
	if err != nil {
		var none T
		return none, h.fault(doing, err)
	}
	return <-answers, nil
}

// capabilities asks the daemon once; they change only with the machine's
// packages.
func (h *host) capabilities(ctx context.Context) (libvirtxml.Caps, error) {
	unlock, err := h.locks.lock(ctx, "capabilities")
	if err != nil {
		return libvirtxml.Caps{}, h.fault("reading the host's capabilities", err)
	}
	defer unlock()
	if h.caps != nil {
		return *h.caps, nil
	}
	doing := "reading the host's capabilities"
	text, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) ([]byte, error) { return lv.Capabilities() })
	if err != nil {
		return libvirtxml.Caps{}, err
	}
	caps := new(libvirtxml.Caps)
	if err := caps.Unmarshal(string(text)); err != nil {
		return libvirtxml.Caps{}, h.unreadable(doing, err)
	}
	h.caps = caps
	return *caps, nil
}

// findDomain looks a domain up by name. It returns egress.ErrNotFound only
// when the daemon said so.
func (h *host) findDomain(ctx context.Context, name string) (libvirt.Domain, error) {
	return read(ctx, h, "looking up domain "+name, func(lv *libvirt.Libvirt) (libvirt.Domain, error) {
		return lv.DomainLookupByName(name)
	})
}

// listDomains gives all domains, running or not.
func (h *host) listDomains(ctx context.Context) ([]libvirt.Domain, error) {
	return read(ctx, h, "listing domains", func(lv *libvirt.Libvirt) ([]libvirt.Domain, error) {
		domains, _, err := lv.ConnectListAllDomains(1, 0)
		return domains, err
	})
}

func (h *host) domainState(ctx context.Context, dom libvirt.Domain) (domainState, error) {
	return read(ctx, h, "reading the state of domain "+dom.Name, func(lv *libvirt.Libvirt) (domainState, error) {
		state, reason, err := lv.DomainGetState(dom, 0)
		return domainState{State: libvirt.DomainState(state), Reason: reason}, err
	})
}

// domain is a domain's persistent definition and our metadata in it.
type domain struct {
	libvirtxml.Domain
	meta metadata
	// metaErr says why meta is empty: errForeign when there is none.
	metaErr error
}

// uuidOf gives a domain's UUID as its definition has it.
func uuidOf(dom libvirt.Domain) string {
	u := dom.UUID
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// defineDomain stores a definition, over that of the same name and UUID where
// there is one.
func (h *host) defineDomain(ctx context.Context, doing, definition string) (libvirt.Domain, error) {
	return write(ctx, h, doing, func(lv *libvirt.Libvirt) (libvirt.Domain, error) {
		return lv.DomainDefineXMLFlags(definition, libvirt.DomainDefineValidate)
	})
}

// setAutostart says whether the domain starts with its host.
func (h *host) setAutostart(ctx context.Context, dom libvirt.Domain, on bool) error {
	value := int32(0)
	if on {
		value = 1
	}
	return h.do(ctx, "setting the autostart of domain "+dom.Name, func(lv *libvirt.Libvirt) error {
		return lv.DomainSetAutostart(dom, value)
	})
}

func (h *host) readDomain(ctx context.Context, dom libvirt.Domain) (domain, error) {
	doing := "reading the definition of domain " + dom.Name
	text, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) (string, error) {
		return lv.DomainGetXMLDesc(dom, libvirt.DomainXMLInactive)
	})
	if err != nil {
		return domain{}, err
	}
	var d domain
	if err := d.Unmarshal(text); err != nil {
		return domain{}, h.unreadable(doing, err)
	}
	if d.Metadata == nil {
		d.metaErr = errForeign
		return d, nil
	}
	d.meta, d.metaErr = parseMetadata(d.Metadata.XML)
	return d, nil
}

// setMetadata replaces our element in the domain's persistent definition,
// which is the one that is read back.
func (h *host) setMetadata(ctx context.Context, dom libvirt.Domain, meta metadata) error {
	doing := "storing metadata on domain " + dom.Name
	text, err := meta.encode()
	if err != nil {
		return h.fault(doing, err)
	}
	return h.do(ctx, doing, func(lv *libvirt.Libvirt) error {
		return lv.DomainSetMetadata(dom, int32(libvirt.DomainMetadataElement), libvirt.OptString{text},
			libvirt.OptString{"egressproxy"}, libvirt.OptString{metadataNamespace}, libvirt.DomainAffectConfig)
	})
}

// startDomain starts a domain that is shut off. afresh discards what it was
// saved as, which would bring its old definition back.
func (h *host) startDomain(ctx context.Context, dom libvirt.Domain, afresh bool) error {
	var flags libvirt.DomainCreateFlags
	if afresh {
		flags = libvirt.DomainStartForceBoot
	}
	err := h.do(ctx, "starting domain "+dom.Name, func(lv *libvirt.Libvirt) error {
		_, err := lv.DomainCreateWithFlags(dom, uint32(flags))
		return err
	})
	if isCode(err, libvirt.ErrOperationInvalid) {
		// It runs already: somebody, or an earlier call whose answer was
		// lost, started it.
		if state, stateErr := h.domainState(ctx, dom); stateErr == nil && state.active() {
			return nil
		}
	}
	return err
}
