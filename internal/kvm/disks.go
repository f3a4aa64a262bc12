package kvm

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// What KVMInstance.MissingVolumes names.
const (
	missingRoot = "root"
	missingSeed = "seed"
)

// observeDisks finds the size of the root disk, its pool, and which of the
// domain's own disks are gone.
func (h *host) observeDisks(ctx context.Context, dom libvirt.Domain, seen *observation) error {
	root, ok := rootDisk(seen.Domain)
	if seen.pool == "" {
		return h.observeForeignDisk(ctx, dom, root, ok, seen)
	}
	for _, own := range []struct{ name, volume string }{{missingRoot, seen.meta.Volumes.Root}, {missingSeed, seen.meta.Volumes.Seed}} {
		if _, attached := diskNamed(seen.Domain, own.volume); !attached {
			continue // taken out by a person, or under a snapshot
		}
		capacity, err := h.ownCapacity(ctx, seen.pool, own.volume)
		switch {
		case errors.Is(err, egress.ErrNotFound):
			seen.missing = append(seen.missing, own.name)
		case err != nil:
			return err
		case own.name == missingRoot:
			seen.diskGiB = int(capacity >> 30)
		}
	}
	if ok && seen.diskGiB == 0 && !slices.Contains(seen.missing, missingRoot) {
		capacity, err := h.diskCapacity(ctx, dom, root.Target)
		seen.diskGiB = int(capacity >> 30)
		return err
	}
	return nil
}

func (h *host) observeForeignDisk(ctx context.Context, dom libvirt.Domain, root diskRef, ok bool, seen *observation) error {
	if !ok {
		return nil
	}
	capacity, err := h.diskCapacity(ctx, dom, root.Target)
	if err != nil {
		return err
	}
	seen.diskGiB = int(capacity >> 30)
	vol, err := h.findDiskVolume(ctx, root)
	if errors.Is(err, egress.ErrNotFound) {
		return nil
	}
	seen.pool = vol.Pool
	return err
}

// ownCapacity reads the size of a volume in bytes from the volume itself: the
// daemon looks at its file. One that is not there is egress.ErrNotFound; of a
// pool that cannot be asked it is not known, which is 0.
func (h *host) ownCapacity(ctx context.Context, pool, name string) (uint64, error) {
	doing := "reading volume " + name + " in pool " + pool
	capacity, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) (uint64, error) {
		_, capacity, _, err := lv.StorageVolGetInfo(libvirt.StorageVol{Pool: pool, Name: name, Key: name})
		return capacity, err
	})
	switch _, daemonSaid := codeOf(err); {
	case !daemonSaid || errors.Is(err, egress.ErrNotFound) && !isCode(err, libvirt.ErrNoStoragePool):
		return capacity, err
	case strings.Contains(err.Error(), "No such file or directory"):
		return 0, &egress.Fault{Kind: egress.ErrNotFound, Doing: doing, Host: h.name, Cause: err}
	}
	return 0, nil
}

// diskCapacity reads the size of a disk in bytes: 0 when the daemon cannot tell.
func (h *host) diskCapacity(ctx context.Context, dom libvirt.Domain, target string) (uint64, error) {
	doing := "reading the size of disk " + target + " of domain " + dom.Name
	capacity, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) (uint64, error) {
		_, capacity, _, err := lv.DomainGetBlockInfo(dom, target, 0)
		return capacity, err
	})
	if _, daemonSaid := codeOf(err); daemonSaid {
		return 0, nil
	}
	return capacity, err
}

// diskNamed finds the disk whose file or device has this base name.
func diskNamed(definition libvirtxml.Domain, name string) (diskRef, bool) {
	for _, d := range disksOf(definition) {
		if name != "" && path.Base(d.Path) == name {
			return d, true
		}
	}
	return diskRef{}, false
}

// findDiskVolume looks up the volume behind a disk. It returns egress.ErrNotFound
// when there is none.
func (h *host) findDiskVolume(ctx context.Context, disk diskRef) (libvirt.StorageVol, error) {
	switch {
	case disk.Path != "":
		return h.findVolumeByPath(ctx, disk.Path)
	case disk.Volume == "":
		return libvirt.StorageVol{}, &egress.Fault{Kind: egress.ErrNotFound, Doing: "looking up the volume behind disk " + disk.Target, Host: h.name}
	}
	return read(ctx, h, "looking up volume "+disk.Volume+" in pool "+disk.Pool, func(lv *libvirt.Libvirt) (libvirt.StorageVol, error) {
		pool, err := lv.StoragePoolLookupByName(disk.Pool)
		if err != nil {
			return libvirt.StorageVol{}, err
		}
		return lv.StorageVolLookupByName(pool, disk.Volume)
	})
}

// findVolumeByPath looks a volume up by its file or device. It returns
// egress.ErrNotFound when no active pool has it.
func (h *host) findVolumeByPath(ctx context.Context, path string) (libvirt.StorageVol, error) {
	return read(ctx, h, "looking up the volume at "+path, func(lv *libvirt.Libvirt) (libvirt.StorageVol, error) {
		return lv.StorageVolLookupByPath(path)
	})
}

// deleteFoundVolume removes a volume; one that is gone already counts as
// removed.
func (h *host) deleteFoundVolume(ctx context.Context, vol libvirt.StorageVol) error {
	err := h.do(ctx, "deleting volume "+vol.Name+" in pool "+vol.Pool, func(lv *libvirt.Libvirt) error {
		return lv.StorageVolDelete(vol, 0)
	})
	if errors.Is(err, egress.ErrNotFound) {
		return nil
	}
	return err
}

// growDisk makes a domain's root disk larger; capacity is in bytes. A running
// guest sees it at once.
func (h *host) growDisk(ctx context.Context, dom libvirt.Domain, running bool, root diskRef, capacity uint64) error {
	if running {
		return h.do(ctx, "growing disk "+root.Target+" of domain "+dom.Name, func(lv *libvirt.Libvirt) error {
			return lv.DomainBlockResize(dom, root.Target, capacity, libvirt.DomainBlockResizeBytes)
		})
	}
	vol, err := h.findDiskVolume(ctx, root)
	if err != nil {
		return err
	}
	return h.do(ctx, "growing volume "+vol.Name+" in pool "+vol.Pool, func(lv *libvirt.Libvirt) error {
		return lv.StorageVolResize(vol, capacity, 0)
	})
}
