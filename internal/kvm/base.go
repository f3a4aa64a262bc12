package kvm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/image"
)

// baseImage is a base image in a pool, whole and verified.
type baseImage struct {
	// Path is where the host sees it.
	Path string
	// Format is how it is written.
	Format image.Format
	// Capacity is its virtual size in bytes.
	Capacity uint64
}

// ensureBase gives the base image in the pool, and fetches it first when the
// pool does not have it: once, however many instances ask at once. accept is
// called with the image's virtual size in bytes before anything is written,
// and can refuse it.
//
// A base image is never changed or removed here once its marker exists, since
// overlays stand on it.
func (h *host) ensureBase(ctx context.Context, pool storagePool, want egress.Image, accept func(capacity uint64) error) (baseImage, error) {
	if want.Volume() != "" {
		return h.volumeBase(ctx, pool.StoragePool, want, accept)
	}
	unlock, err := h.locks.lock(ctx, baseLock(pool.Name, want.SHA256))
	if err != nil {
		return baseImage{}, h.fault("waiting for another instance to fetch image "+want.Name, err)
	}
	defer unlock()

	base, err := h.findBase(ctx, pool.StoragePool, want.SHA256)
	switch {
	case err == nil:
		return base, accept(base.Capacity)
	case !errors.Is(err, egress.ErrNotFound):
		return baseImage{}, err
	}

	if err := h.images.knownWrong(want); err != nil {
		return baseImage{}, err
	}
	source, err := image.Source{Location: want.Source, SHA256: want.SHA256}.Open(ctx)
	if err != nil {
		return baseImage{}, err
	}
	defer source.Close()
	header := source.Header()
	if err := accept(header.VirtualSize); err != nil {
		return baseImage{}, err
	}
	if size := source.Size(); size > 0 && uint64(size) > pool.Available {
		return baseImage{}, &egress.Fault{Kind: egress.ErrQuotaExceeded, Doing: "uploading image " + want.Name + " to pool " + pool.Name, Host: h.name,
			Cause:     fmt.Errorf("the image has %d MiB, the pool has %d MiB free", size>>20, pool.Available>>20),
			Remedy:    "Free space in the storage pool, or choose another one with kvm.pool.",
			Attribute: "kvm.pool"}
	}
	base, err = h.uploadBase(ctx, pool.StoragePool, want, source, header)
	h.images.remember(want, err)
	return base, err
}

// forgetBase removes the marker of a base image whose copy is gone. Another
// instance may have fetched the image again meanwhile: then it stays.
func (h *host) forgetBase(ctx context.Context, pool libvirt.StoragePool, want egress.Image, gone baseImage) error {
	unlock, err := h.locks.lock(ctx, baseLock(pool.Name, want.SHA256))
	if err != nil {
		return h.fault("waiting for others on image "+want.Name, err)
	}
	defer unlock()
	base, err := h.findBase(ctx, pool, want.SHA256)
	switch {
	case errors.Is(err, egress.ErrNotFound) || err == nil && base.Path != gone.Path:
		return nil
	case err != nil:
		return err
	}
	return h.deleteVolume(ctx, pool, markerName(want.SHA256))
}

// baseLock is the lock over a base image: held by who fetches it, puts an
// overlay on it, or takes it away.
func baseLock(pool, sha256 string) string { return "base/" + pool + "/" + sha256 }

// findBase reads the marker of a base image: its backing file is the image. A
// marker that another process is just creating has its name before its content,
// so one that cannot be read yet is looked at again for a while.
func (h *host) findBase(ctx context.Context, pool libvirt.StoragePool, sha256 string) (baseImage, error) {
	giveUp := time.NewTimer(markerPatience)
	defer giveUp.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		marker, err := h.findVolume(ctx, pool, markerName(sha256))
		if err != nil {
			return baseImage{}, err
		}
		base, err := h.readMarker(ctx, marker)
		if !errors.Is(err, egress.ErrNotFound) && !errors.Is(err, errNoBacking) {
			return base, err
		}
		select {
		case <-tick.C:
		case <-giveUp.C:
			return baseImage{}, err
		case <-ctx.Done():
			return baseImage{}, h.fault("reading the marker of a base image", ctx.Err())
		}
	}
}

// markerPatience is how long the creation of a marker, an empty volume, may
// take.
const markerPatience = 10 * time.Second

var errNoBacking = errors.New("the volume has no backing file")

func (h *host) readMarker(ctx context.Context, marker libvirt.StorageVol) (baseImage, error) {
	description, err := h.describeVolume(ctx, marker)
	if err != nil {
		return baseImage{}, err
	}
	backing := description.BackingStore
	if backing == nil || backing.Format == nil || description.Capacity == nil {
		return baseImage{}, &egress.Fault{Kind: egress.ErrPermanent, Doing: "reading volume " + marker.Name + " in pool " + marker.Pool + ", the marker of a base image", Host: h.name,
			Cause: errNoBacking, Remedy: "Delete that volume to have the image fetched again."}
	}
	return baseImage{Path: backing.Path, Format: image.Format(backing.Format.Type), Capacity: description.Capacity.Value}, nil
}

// uploadBase writes the image into a volume of its own and, once all of it has
// arrived with the right checksum, creates the marker over it. When another
// process was faster, its copy is taken and this one removed.
func (h *host) uploadBase(ctx context.Context, pool libvirt.StoragePool, want egress.Image, source *image.Reader, header image.Header) (baseImage, error) {
	name := baseName(want.SHA256, randomSuffix(), header.Format)
	vol, err := h.createVolume(ctx, pool, name, string(header.Format), header.VirtualSize, nil)
	if err != nil {
		return baseImage{}, err
	}
	base, err := h.completeBase(ctx, pool, vol, want, source, header)
	if err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return baseImage{}, errors.Join(err, h.deleteVolume(cleanup, pool, name))
	}
	h.removeUnusedCopies(ctx, pool, want.SHA256, base)
	return base, nil
}

func (h *host) completeBase(ctx context.Context, pool libvirt.StoragePool, vol libvirt.StorageVol, want egress.Image, source *image.Reader, header image.Header) (baseImage, error) {
	if err := h.uploadVolume(ctx, vol, source.Packets(streamPacket)); err != nil {
		return baseImage{}, err
	}
	target, err := h.diskOf(ctx, vol)
	if errors.Is(err, egress.ErrNotFound) { // removed by a faster process, which then has marked its own
		return h.findBase(ctx, pool, want.SHA256)
	}
	if err != nil {
		return baseImage{}, err
	}
	base := baseImage{Path: target.Path, Format: header.Format, Capacity: header.VirtualSize}
	_, err = h.createVolume(ctx, pool, markerName(want.SHA256), "qcow2", header.VirtualSize, &base)
	if errors.Is(err, egress.ErrAlreadyExists) {
		return h.findBase(ctx, pool, want.SHA256)
	}
	return base, err
}

// removeUnusedCopies deletes copies of a base image that killed or slower runs
// left: all but the marked one, and none that an overlay stands on. Whoever is
// still writing one finds the marker and takes the marked copy. A failure only
// leaves a copy behind for the next time, so it is not reported.
func (h *host) removeUnusedCopies(ctx context.Context, pool libvirt.StoragePool, sha256 string, keep baseImage) {
	copies, err := h.listVolumes(ctx, pool, basePrefix(sha256)+"-")
	if err != nil || len(copies) < 2 {
		return
	}
	inUse, err := h.backingFiles(ctx, pool, func(name string) bool { return strings.HasPrefix(name, basePrefix(sha256)+"-") })
	if err != nil {
		return
	}
	inUse[keep.Path] = true
	for _, vol := range copies {
		if description, err := h.describeVolume(ctx, vol); err == nil && !inUse[description.Target.Path] {
			_ = h.deleteVolume(ctx, pool, vol.Name)
		}
	}
}

// randomSuffix is unique among the uploads of one image.
func randomSuffix() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand documentation)
	return hex.EncodeToString(b[:])
}
