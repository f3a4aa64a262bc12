package kvm

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Delete implements egress.Backend. It removes the domain, its root disk and its
// seed, also those of an instance whose domain is gone already. The base image
// stays for the next instance, unless it is to be pruned. Of a machine that
// others made, the root disk goes, and what else it has stays.
func (b *Backend) Delete(ctx context.Context, id egress.ProviderID, uid string) error {
	h, err := b.host(id)
	if err != nil {
		return err
	}
	unlock, err := h.locks.lock(ctx, "instance/"+id.Name)
	if err != nil {
		return h.fault("waiting for other work on instance "+id.Name, err)
	}
	defer unlock()

	dom, err := h.findDomain(ctx, id.Name)
	if errors.Is(err, egress.ErrNotFound) || (err == nil && uid != "" && uuidOf(dom) != uid) {
		return h.deleteLeftVolumes(ctx, id.Name, uid)
	}
	if err != nil {
		return err
	}
	found, err := h.readDomain(ctx, dom)
	if err != nil {
		return err
	}
	if errors.Is(found.metaErr, errForeign) && uid == "" {
		return &egress.Fault{Kind: egress.ErrPermanent, Doing: "deleting domain " + id.Name, Host: h.name, Cause: found.metaErr,
			Remedy: "Import it first, or remove the domain with virsh undefine."}
	}
	return b.remove(ctx, h, dom, found, removal{grace: b.shutdownGrace, prune: true})
}

// removal says how a domain is removed.
type removal struct {
	// grace is the time that the guest gets to shut down by itself; with none it
	// is ended at once.
	grace time.Duration
	// prune tells that the image may go too, where Config says so: nobody is
	// about to make the instance again.
	prune bool
}

// remove ends a domain and deletes what is its own.
//
// The definition goes last: as long as anything is left, the domain is there to
// be found, and the next removal goes on from it.
func (b *Backend) remove(ctx context.Context, h *host, dom libvirt.Domain, found domain, how removal) error {
	volumes, err := b.volumesToDelete(ctx, h, dom, found)
	if err != nil {
		return err
	}
	state, err := h.domainState(ctx, dom)
	if errors.Is(err, egress.ErrNotFound) {
		state.State = libvirt.DomainShutoff
	} else if err != nil {
		return err
	}
	if found.meta.Unfinished {
		how.grace = 0
	}
	if err := b.stop(ctx, h, dom, state, how.grace); err != nil {
		return err
	}
	for _, vol := range volumes {
		if err := h.deleteFoundVolume(ctx, vol); err != nil {
			return err
		}
	}
	if how.prune {
		if err := b.pruneImage(ctx, h, found.meta); err != nil {
			return err
		}
	}
	if err := h.undefine(ctx, dom); err != nil {
		return err
	}
	if found.metaErr != nil && !errors.Is(found.metaErr, errForeign) {
		// Metadata of ours that cannot be read does not say where its volumes are.
		return h.deleteLeftVolumes(ctx, dom.Name, uuidOf(dom))
	}
	return nil
}

// volumesToDelete finds a domain's own volumes. A pool that is not active cannot
// be cleaned: that is an error now, before the machine is stopped.
func (b *Backend) volumesToDelete(ctx context.Context, h *host, dom libvirt.Domain, found domain) ([]libvirt.StorageVol, error) {
	root, _ := rootDisk(found.Domain)
	var out []libvirt.StorageVol
	if found.meta.Pool == "" {
		if found.metaErr != nil && !errors.Is(found.metaErr, errForeign) {
			return nil, nil
		}
		return h.adoptedRoot(ctx, dom, root)
	}
	pool, err := h.findPool(ctx, found.meta.Pool)
	if errors.Is(err, errNoPool) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, name := range []string{found.meta.Volumes.Root, found.meta.Volumes.Seed} {
		vol, err := h.findVolume(ctx, pool.StoragePool, name)
		if errors.Is(err, egress.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, vol)
	}
	if root.Path == "" || path.Base(root.Path) == found.meta.Volumes.Root {
		return out, nil
	}
	above, err := h.snapshotsAbove(ctx, pool.StoragePool, root.Path, found.meta.Volumes.Root)
	return append(above, out...), err
}

// snapshotsAbove finds the volumes that external snapshots have put between the
// disk at path and the volume named base, topmost first. A path that does not
// lead there is some other disk that a person attached, and stays.
func (h *host) snapshotsAbove(ctx context.Context, pool libvirt.StoragePool, disk, base string) ([]libvirt.StorageVol, error) {
	// QEMU made them, so the pool may not know them yet.
	if err := h.refreshPool(ctx, pool); err != nil {
		return nil, err
	}
	var out []libvirt.StorageVol
	for range maxSnapshots {
		if path.Base(disk) == base {
			return out, nil
		}
		vol, err := h.findVolumeByPath(ctx, disk)
		if errors.Is(err, egress.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		description, err := h.describeVolume(ctx, vol)
		if err != nil {
			return nil, err
		}
		if description.BackingStore == nil {
			return nil, nil
		}
		out = append(out, vol)
		disk = description.BackingStore.Path
	}
	return nil, nil
}

// maxSnapshots bounds a chain of snapshots.
const maxSnapshots = 200

// adoptedRoot finds the volume of the root disk of a machine that others made.
// One that something else uses too, or that is no volume, stays.
func (h *host) adoptedRoot(ctx context.Context, dom libvirt.Domain, root diskRef) ([]libvirt.StorageVol, error) {
	vol, err := h.findDiskVolume(ctx, root)
	if errors.Is(err, egress.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	target, err := h.diskOf(ctx, vol)
	if err != nil {
		return nil, err
	}
	user, err := h.userOf(ctx, target.Path, uuidOf(dom))
	if err != nil || user != "" {
		return nil, err
	}
	pool, err := h.findPool(ctx, vol.Pool)
	if err != nil {
		return nil, err
	}
	// What people put on it by hand the pool may not know yet.
	if err := h.refreshPool(ctx, pool.StoragePool); err != nil {
		return nil, err
	}
	inUse, err := h.backingFiles(ctx, pool.StoragePool, nil)
	if err != nil || inUse[target.Path] {
		return nil, err
	}
	return []libvirt.StorageVol{vol}, nil
}

// deleteLeftVolumes removes the volumes of an incarnation of an instance whose
// domain is gone. Nothing tells any more which pool they were in, so every
// active one is searched. Without a UUID it is not known which volumes they are.
func (h *host) deleteLeftVolumes(ctx context.Context, instance, uuid string) error {
	if uuid == "" {
		return nil
	}
	pools, err := h.activePools(ctx)
	if err != nil {
		return err
	}
	caps, err := h.capabilities(ctx)
	if err != nil {
		return err
	}
	names := namesFor(instance, caps.Host.UUID, uuid)
	var errs []error
	for _, pool := range pools {
		errs = append(errs, h.deleteUnusedVolume(ctx, pool, names.Root), h.deleteUnusedVolume(ctx, pool, names.Seed))
	}
	return errors.Join(errs...)
}
