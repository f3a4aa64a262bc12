package kvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// storagePool is a pool that was found and is active.
type storagePool struct {
	libvirt.StoragePool
	// Available is the free space in bytes.
	Available uint64

	active bool
}

// findPool looks a pool up, and makes sure that it can be used, before
// anything is made.
func (h *host) findPool(ctx context.Context, name string) (storagePool, error) {
	pool, err := h.lookUpPool(ctx, name)
	switch {
	case isCode(err, libvirt.ErrNoStoragePool):
		return storagePool{}, &egress.Fault{Kind: egress.ErrPermanent, Doing: "looking up storage pool " + name, Host: h.name, Cause: errNoPool, Attribute: "kvm.pool",
			Remedy: "Name a storage pool of the host (virsh pool-list --all), or define this one."}
	case err != nil || pool.active:
		return pool, err
	case !h.startPool:
		return storagePool{}, &egress.Fault{Kind: egress.ErrPermanent, Doing: "looking up storage pool " + name, Host: h.name, Cause: errors.New("the pool is not active"), Attribute: "kvm.pool",
			Remedy: "Start it on the host (virsh pool-start " + name + "), or set start_pool = true in the provider's kvm block to have it started when it is needed."}
	}
	err = h.do(ctx, "starting storage pool "+name, func(lv *libvirt.Libvirt) error {
		return lv.StoragePoolCreate(pool.StoragePool, libvirt.StoragePoolCreateNormal)
	})
	if now, lookErr := h.lookUpPool(ctx, name); lookErr == nil && now.active {
		return now, nil // by this call or, at the same time, somebody else's
	}
	if err == nil {
		err = &egress.Fault{Kind: egress.ErrTransient, Doing: "starting storage pool " + name, Host: h.name, Cause: errors.New("it is not active afterwards"), Attribute: "kvm.pool",
			Remedy: "See the daemon's log on the host."}
	}
	return storagePool{}, err
}

var errNoPool = errors.New("there is no such pool")

func (h *host) lookUpPool(ctx context.Context, name string) (storagePool, error) {
	return read(ctx, h, "looking up storage pool "+name, func(lv *libvirt.Libvirt) (storagePool, error) {
		pool, err := lv.StoragePoolLookupByName(name)
		if err != nil {
			return storagePool{}, err
		}
		state, _, _, available, err := lv.StoragePoolGetInfo(pool)
		return storagePool{StoragePool: pool, Available: available, active: libvirt.StoragePoolState(state) == libvirt.StoragePoolRunning}, err
	})
}

// checkPoolKind refuses a pool whose volumes are not files: libvirt makes
// overlays over a base image only where they are.
func (h *host) checkPoolKind(ctx context.Context, pool libvirt.StoragePool) error {
	doing := "reading the kind of storage pool " + pool.Name
	text, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) (string, error) { return lv.StoragePoolGetXMLDesc(pool, 0) })
	if err != nil {
		return err
	}
	var description libvirtxml.StoragePool
	if err := description.Unmarshal(text); err != nil {
		return h.unreadable(doing, err)
	}
	if slices.Contains(poolsOfFiles, description.Type) {
		return nil
	}
	return &egress.Fault{Kind: egress.ErrPermanent, Doing: doing, Host: h.name, Attribute: "kvm.pool",
		Cause:  fmt.Errorf("it is of type %s, whose volumes are not files: a machine's disk cannot stand on an image there", description.Type),
		Remedy: "Choose a pool of type " + strings.Join(poolsOfFiles, ", ") + " with kvm.pool."}
}

// poolsOfFiles are the types of pools whose volumes are files in a directory of
// the host (libvirt's storage driver documentation).
var poolsOfFiles = []string{"dir", "fs", "netfs"}

// refreshPool has libvirt look at what is in a pool, which it refuses to do for
// as long as volumes are written, as by another instance's upload.
func (h *host) refreshPool(ctx context.Context, pool libvirt.StoragePool) error {
	doing := "refreshing pool " + pool.Name
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	for {
		err := h.do(ctx, doing, func(lv *libvirt.Libvirt) error { return lv.StoragePoolRefresh(pool, 0) })
		if err == nil || !strings.Contains(err.Error(), "has asynchronous jobs running") {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, h.fault(doing, ctx.Err()))
		}
	}
}

// refreshInterval is the time between two attempts to refresh a busy pool.
const refreshInterval = 500 * time.Millisecond

func (h *host) activePools(ctx context.Context) ([]libvirt.StoragePool, error) {
	return read(ctx, h, "listing storage pools", func(lv *libvirt.Libvirt) ([]libvirt.StoragePool, error) {
		pools, _, err := lv.ConnectListAllStoragePools(1, libvirt.ConnectListStoragePoolsActive)
		return pools, err
	})
}
