// Package kvm runs egress proxies as libvirt domains: QEMU/KVM machines on any
// number of hosts, each reached over a unix socket or SSH.
//
// Creation is one flow of repeatable steps: base image, overlay, seed, define,
// start, wait until the proxy forwards, clear the unfinished mark. Whatever
// point a run stopped at, the next one keeps the base image and makes the rest
// anew.
package kvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/probe"
)

// Config is what the backend knows of the world.
type Config struct {
	// Hosts are the hypervisors, by the name that instances refer to.
	Hosts map[string]connection.Host
	// ShutdownGrace is how long a guest may take to shut down by itself when
	// its instance is deleted, before it is ended. Zero means 20 s.
	ShutdownGrace time.Duration
	// PasswordPatience is how long a proxy may refuse the password at hand before
	// that counts as its last word: one that is just starting may not have read
	// its users yet. Zero means a minute.
	PasswordPatience time.Duration
	// BeatInterval is how often a run that makes an instance shows that it is
	// alive: another one gives it three such intervals before it takes an
	// unfinished instance over. Zero means 5 s.
	BeatInterval time.Duration
	// StartPool says to start a storage pool that is not active when something is
	// to be made or deleted in it.
	StartPool bool
	// PruneImages says to delete a base image with the last instance that stands
	// on it.
	PruneImages bool
	// Log takes a line for each call to a daemon, with its fields; nil means
	// that nobody wants them. No line holds a secret.
	Log func(ctx context.Context, message string, fields map[string]any)
}

// Backend is the egress.Backend for libvirt hosts.
type Backend struct {
	hosts         map[string]*host
	now           func() time.Time
	probe         func(context.Context, probe.Probe) error
	shutdownGrace time.Duration
	// passwordPatience is Config's.
	passwordPatience time.Duration
	// beatInterval is Config's.
	beatInterval time.Duration
	// pruneImages is Config's.
	pruneImages bool
	// pollInterval is the time between two looks at a machine's state.
	pollInterval time.Duration
}

var _ egress.Backend = (*Backend)(nil)

// New makes a backend. It talks to nobody: hosts are dialled at first use.
func New(config Config) *Backend {
	b := &Backend{
		hosts:         make(map[string]*host, len(config.Hosts)),
		now:           time.Now,
		probe:         func(ctx context.Context, p probe.Probe) error { return p.Run(ctx) },
		shutdownGrace: cmp.Or(config.ShutdownGrace, 20*time.Second),
		pollInterval:  time.Second,

		passwordPatience: cmp.Or(config.PasswordPatience, time.Minute),
		beatInterval:     cmp.Or(config.BeatInterval, 5*time.Second),
		pruneImages:      config.PruneImages,
	}
	log := config.Log
	if log == nil {
		log = func(context.Context, string, map[string]any) {}
	}
	images := newImageFacts()
	for name, h := range config.Hosts {
		b.hosts[name] = &host{name: name, pool: connection.New(h), log: log, agents: make(chan struct{}, agentCalls), images: images, startPool: config.StartPool}
	}
	return b
}

// Close ends all connections.
func (b *Backend) Close() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(b.hosts)) {
		errs = append(errs, b.hosts[name].pool.Close())
	}
	return errors.Join(errs...)
}

// host gives the host an ID names, or says which there are.
func (b *Backend) host(id egress.ProviderID) (*host, error) {
	if id.Backend != egress.KVM {
		return nil, fmt.Errorf("instance %s is not on a libvirt host", id)
	}
	if h, ok := b.hosts[id.Location]; ok {
		return h, nil
	}
	known := strings.Join(slices.Sorted(maps.Keys(b.hosts)), ", ")
	if known == "" {
		known = "none"
	}
	return nil, &egress.Fault{
		Kind:      egress.ErrPermanent,
		Doing:     fmt.Sprintf("finding the host of instance %s", id.Name),
		Cause:     fmt.Errorf("the provider's kvm.hosts has no host %q; it has: %s", id.Location, known),
		Remedy:    "Add the host to kvm.hosts in the provider block, or correct kvm.host.",
		Attribute: "kvm.host",
	}
}
