package kvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// streamPacket is the size of the packets that libvirt's own client sends on a
// stream, in bytes (VIR_NET_MESSAGE_LEGACY_PAYLOAD_MAX): the largest that every
// daemon takes.
const streamPacket = 262120

// cleanupTimeout bounds what is undone after a failure, which must not hang on
// the very fault it cleans up after.
const cleanupTimeout = 10 * time.Second

// findVolume looks a volume up by name. It returns egress.ErrNotFound only
// when the daemon said so.
func (h *host) findVolume(ctx context.Context, pool libvirt.StoragePool, name string) (libvirt.StorageVol, error) {
	return read(ctx, h, fmt.Sprintf("looking up volume %s in pool %s", name, pool.Name), func(lv *libvirt.Libvirt) (libvirt.StorageVol, error) {
		return lv.StorageVolLookupByName(pool, name)
	})
}

// describeVolume reads what a volume is.
func (h *host) describeVolume(ctx context.Context, vol libvirt.StorageVol) (libvirtxml.StorageVolume, error) {
	doing := fmt.Sprintf("reading volume %s in pool %s", vol.Name, vol.Pool)
	text, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) (string, error) { return lv.StorageVolGetXMLDesc(vol, 0) })
	if err != nil {
		return libvirtxml.StorageVolume{}, err
	}
	var description libvirtxml.StorageVolume
	if err := description.Unmarshal(text); err != nil {
		return libvirtxml.StorageVolume{}, h.unreadable(doing, err)
	}
	if description.Target == nil || description.Target.Path == "" {
		return libvirtxml.StorageVolume{}, h.unreadable(doing, errors.New("the daemon gives no path for it"))
	}
	return description, nil
}

// createVolume makes a volume. A name that is taken is egress.ErrAlreadyExists.
func (h *host) createVolume(ctx context.Context, pool libvirt.StoragePool, name, format string, capacity uint64, backing *baseImage) (libvirt.StorageVol, error) {
	doing := fmt.Sprintf("creating volume %s in pool %s", name, pool.Name)
	definition, err := volumeXML(name, format, capacity, backing)
	if err != nil {
		return libvirt.StorageVol{}, h.fault(doing, err)
	}
	vol, err := write(ctx, h, doing, func(lv *libvirt.Libvirt) (libvirt.StorageVol, error) {
		return lv.StorageVolCreateXML(pool, definition, 0)
	})
	if unlisted(err) {
		// The pool does not know what is in it: have it look again, so that
		// the volume can be found by its name.
		if err := h.refreshPool(ctx, pool); err != nil {
			return libvirt.StorageVol{}, err
		}
		return libvirt.StorageVol{}, &egress.Fault{Kind: egress.ErrAlreadyExists, Doing: doing, Host: h.name, Cause: err}
	}
	return vol, err
}

// unlisted tells whether a volume could not be made because a file of its name
// is there that the pool has not listed, as after a copy by hand or on shared
// storage. libvirt has no code for that, only this text.
func unlisted(err error) bool {
	return isCode(err, libvirt.ErrOperationInvalid) && strings.Contains(err.Error(), "already exists")
}

// replaceVolume makes a volume in place of one an earlier run left under the
// same name.
func (h *host) replaceVolume(ctx context.Context, pool libvirt.StoragePool, name, format string, capacity uint64, backing *baseImage) (libvirt.StorageVol, error) {
	vol, err := h.createVolume(ctx, pool, name, format, capacity, backing)
	if !errors.Is(err, egress.ErrAlreadyExists) {
		return vol, err
	}
	if err := h.deleteUnusedVolume(ctx, pool, name); err != nil {
		return libvirt.StorageVol{}, err
	}
	return h.createVolume(ctx, pool, name, format, capacity, backing)
}

// deleteUnusedVolume removes a volume that no domain of ours claims any more,
// unless some other domain does: a person may have renamed ours or put its disk
// to another use.
func (h *host) deleteUnusedVolume(ctx context.Context, pool libvirt.StoragePool, name string) error {
	vol, err := h.findVolume(ctx, pool, name)
	if errors.Is(err, egress.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	target, err := h.diskOf(ctx, vol)
	if errors.Is(err, egress.ErrNotFound) { // its file is gone, only the pool still lists it
		return h.deleteVolume(ctx, pool, name)
	}
	if err != nil {
		return err
	}
	user, err := h.userOf(ctx, target.Path)
	if err != nil {
		return err
	}
	if user != "" {
		return &egress.Fault{Kind: egress.ErrPermanent, Doing: fmt.Sprintf("deleting volume %s in pool %s", name, pool.Name), Host: h.name,
			Cause:  fmt.Errorf("%w: domain %s uses it", errInUse, user),
			Remedy: "Give that domain its old name back, or another disk, or remove it."}
	}
	return h.deleteVolume(ctx, pool, name)
}

var errInUse = errors.New("the volume is in use")

// userOf names a domain with a disk at path, other than those excepted by their
// UUIDs, or nothing when none has.
func (h *host) userOf(ctx context.Context, path string, except ...string) (string, error) {
	domains, err := h.listDomains(ctx)
	if err != nil {
		return "", err
	}
	for _, dom := range domains {
		if slices.Contains(except, uuidOf(dom)) {
			continue
		}
		found, err := h.readDomain(ctx, dom)
		if errors.Is(err, egress.ErrNotFound) {
			continue
		}
		if err != nil {
			return "", err
		}
		if slices.Contains(diskPaths(found.Domain), path) {
			return dom.Name, nil
		}
	}
	return "", nil
}

// diskPaths are the files and devices behind a domain's disks.
func diskPaths(definition libvirtxml.Domain) []string {
	var paths []string
	if definition.Devices == nil {
		return nil
	}
	for _, d := range definition.Devices.Disks {
		switch {
		case d.Source == nil:
		case d.Source.File != nil:
			paths = append(paths, d.Source.File.File)
		case d.Source.Block != nil:
			paths = append(paths, d.Source.Block.Dev)
		}
	}
	return paths
}

// deleteVolume removes a volume; one that is gone already counts as removed.
func (h *host) deleteVolume(ctx context.Context, pool libvirt.StoragePool, name string) error {
	vol, err := h.findVolume(ctx, pool, name)
	if errors.Is(err, egress.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	err = h.do(ctx, fmt.Sprintf("deleting volume %s in pool %s", name, pool.Name), func(lv *libvirt.Libvirt) error {
		return lv.StorageVolDelete(vol, 0)
	})
	if errors.Is(err, egress.ErrNotFound) {
		return nil
	}
	return err
}

// uploadVolume writes content into a volume, from its start. Where content's
// own reader failed, that is the error: what comes back through a stream may be
// the daemon's complaint about the broken-off stream instead.
func (h *host) uploadVolume(ctx context.Context, vol libvirt.StorageVol, content io.Reader) error {
	doing := fmt.Sprintf("uploading volume %s in pool %s", vol.Name, vol.Pool)
	source := &watchedReader{Reader: content, failed: make(chan error, 1)}
	err := h.observe(ctx, doing, func() error {
		return h.pool.Stream(ctx, doing, func(lv *libvirt.Libvirt) error {
			return lv.StorageVolUpload(vol, source, 0, 0, 0)
		})
	})
	select {
	case failure := <-source.failed:
		return h.fault(doing, failure)
	default:
		return h.fault(doing, err)
	}
}

// watchedReader tells, once, why its reader failed.
type watchedReader struct {
	io.Reader
	failed chan error
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		select {
		case r.failed <- err:
		default:
		}
	}
	return n, err
}

// checkDiskSize refuses a root disk that cannot hold the image.
func checkDiskSize(h *host, spec egress.Spec, capacity uint64) error {
	if uint64(spec.KVM.DiskGiB)<<30 >= capacity {
		return nil
	}
	return &egress.Fault{Kind: egress.ErrPermanent, Doing: "sizing the root disk of instance " + spec.ID.Name, Host: h.name,
		Cause:     fmt.Errorf("disk_gib is %d (%d bytes), but image %s holds a disk of %d bytes", spec.KVM.DiskGiB, uint64(spec.KVM.DiskGiB)<<30, spec.KVM.Image.Name, capacity),
		Remedy:    fmt.Sprintf("Set kvm.disk_gib to %d or more.", (capacity+1<<30-1)>>30),
		Attribute: "kvm.disk_gib"}
}

// createOverlay makes an instance's root disk over a base image. Where somebody
// removed the image and left its marker, the image is fetched again first.
func (h *host) createOverlay(ctx context.Context, pool storagePool, name string, spec egress.Spec, base baseImage) (disk, error) {
	vol, err := h.putOverlay(ctx, pool, name, spec, base)
	if baseMissing(err) && spec.KVM.Image.Volume() == "" {
		if err := h.forgetBase(ctx, pool.StoragePool, spec.KVM.Image, base); err != nil {
			return disk{}, err
		}
		if base, err = h.ensureBase(ctx, pool, spec.KVM.Image, func(capacity uint64) error { return checkDiskSize(h, spec, capacity) }); err != nil {
			return disk{}, err
		}
		vol, err = h.putOverlay(ctx, pool, name, spec, base)
	}
	if err != nil {
		return disk{}, err
	}
	return h.diskOf(ctx, vol)
}

// putOverlay makes the overlay while nobody takes its base image away.
func (h *host) putOverlay(ctx context.Context, pool storagePool, name string, spec egress.Spec, base baseImage) (libvirt.StorageVol, error) {
	unlock, err := h.locks.lock(ctx, baseLock(pool.Name, spec.KVM.Image.SHA256))
	if err != nil {
		return libvirt.StorageVol{}, h.fault("waiting for others on image "+spec.KVM.Image.Name, err)
	}
	defer unlock()
	return h.replaceVolume(ctx, pool.StoragePool, name, "qcow2", overlayCapacity(spec, base), &base)
}

// baseMissing tells whether an overlay could not be made because its backing
// file is gone. libvirt has no code for that, only this text.
func baseMissing(err error) bool {
	return err != nil && strings.Contains(err.Error(), "inaccessible backing store volume") && strings.Contains(err.Error(), "No such file")
}

// overlayCapacity is the root disk's size in bytes: what was asked for, and
// never less than the image holds.
func overlayCapacity(spec egress.Spec, base baseImage) uint64 {
	return max(uint64(spec.KVM.DiskGiB)<<30, base.Capacity)
}

// createSeed makes the volume with an instance's seed. It is always made anew:
// one left by an earlier run may be half of one, and a machine that boots with
// such a seed is never configured.
func (h *host) createSeed(ctx context.Context, pool libvirt.StoragePool, name string, content []byte) (disk, error) {
	vol, err := h.replaceVolume(ctx, pool, name, "raw", uint64(len(content)), nil)
	if err != nil {
		return disk{}, err
	}
	if err := h.uploadVolume(ctx, vol, bytes.NewReader(content)); err != nil {
		return disk{}, err
	}
	return h.diskOf(ctx, vol)
}

func (h *host) diskOf(ctx context.Context, vol libvirt.StorageVol) (disk, error) {
	description, err := h.describeVolume(ctx, vol)
	if err != nil {
		return disk{}, err
	}
	return disk{Path: description.Target.Path, Block: description.Type == "block"}, nil
}

// listVolumes gives the volumes of a pool whose names start with prefix.
func (h *host) listVolumes(ctx context.Context, pool libvirt.StoragePool, prefix string) ([]libvirt.StorageVol, error) {
	all, err := read(ctx, h, "listing the volumes in pool "+pool.Name, func(lv *libvirt.Libvirt) ([]libvirt.StorageVol, error) {
		all, _, err := lv.StoragePoolListAllVolumes(pool, 1, 0)
		return all, err
	})
	if err != nil {
		return nil, err
	}
	var out []libvirt.StorageVol
	for _, vol := range all {
		if strings.HasPrefix(vol.Name, prefix) {
			out = append(out, vol)
		}
	}
	return out, nil
}

// backingFiles are the files that volumes of a pool stand on, those of the
// excepted volumes aside.
func (h *host) backingFiles(ctx context.Context, pool libvirt.StoragePool, except func(name string) bool) (map[string]bool, error) {
	volumes, err := h.listVolumes(ctx, pool, "")
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, vol := range volumes {
		if except != nil && except(vol.Name) {
			continue
		}
		description, err := h.describeVolume(ctx, vol)
		if errors.Is(err, egress.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if description.BackingStore != nil {
			out[description.BackingStore.Path] = true
		}
	}
	return out, nil
}
