package kvm

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/image"
)

// imageFacts is what a process has found out about images: it holds for every
// host, and for as long as the process lives.
type imageFacts struct {
	locks keyedLocks
	mu    sync.Mutex // over all below
	// sums are the checksums that lists have told, by list and image.
	sums map[[2]string]string
	// wrong are the faults of images that were read to their end and had another
	// checksum, by source and checksum.
	wrong map[[2]string]egress.Fault
}

func newImageFacts() *imageFacts {
	return &imageFacts{sums: map[[2]string]string{}, wrong: map[[2]string]egress.Fault{}}
}

// resolveImage gives the image with its checksum, which a list may have to tell:
// it is asked once, however many instances there are.
func (h *host) resolveImage(ctx context.Context, want egress.Image) (egress.Image, error) {
	if want.SHA256 != "" || want.ChecksumURL == "" {
		return want, nil
	}
	key := [2]string{want.ChecksumURL, want.Source}
	unlock, err := h.images.locks.lock(ctx, strings.Join(key[:], " "))
	if err != nil {
		return want, h.fault("waiting for the checksum of image "+want.Name, err)
	}
	defer unlock()
	h.images.mu.Lock()
	want.SHA256 = h.images.sums[key]
	h.images.mu.Unlock()
	if want.SHA256 != "" {
		return want, nil
	}
	if want.SHA256, err = (image.Source{Location: want.Source}).FetchChecksum(ctx, want.ChecksumURL); err != nil {
		return want, err
	}
	h.images.mu.Lock()
	defer h.images.mu.Unlock()
	h.images.sums[key] = want.SHA256
	return want, nil
}

// knownWrong gives the fault of an image that is known to have another checksum:
// it is not read again for every instance that wants it.
func (f *imageFacts) knownWrong(want egress.Image) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fault, known := f.wrong[[2]string{want.Source, want.SHA256}]
	if !known {
		return nil
	}
	return &fault
}

// remember keeps that an image has another checksum, if that is what err says.
func (f *imageFacts) remember(want egress.Image, err error) {
	var fault *egress.Fault
	if !image.IsWrongChecksum(err) || !errors.As(err, &fault) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := *fault
	kept.Host = "" // it is no host's
	f.wrong[[2]string{want.Source, want.SHA256}] = kept
}

// volumeBase gives a volume of the pool as a base image. accept is called with
// its virtual size in bytes, and can refuse it.
func (h *host) volumeBase(ctx context.Context, pool libvirt.StoragePool, want egress.Image, accept func(capacity uint64) error) (baseImage, error) {
	name := want.Volume()
	doing := fmt.Sprintf("taking volume %s in pool %s as image %s", name, pool.Name, want.Name)
	refuse := func(cause error, remedy string) (baseImage, error) {
		return baseImage{}, &egress.Fault{Kind: egress.ErrPermanent, Doing: doing, Host: h.name, Cause: cause, Remedy: remedy, Attribute: "kvm.image"}
	}
	const another = "Name another volume in the source of the image in the provider's images."
	vol, err := h.findVolume(ctx, pool, name)
	if errors.Is(err, egress.ErrNotFound) {
		return refuse(errors.New("there is no such volume"),
			"Put it there (virsh vol-upload, or copy the file and virsh pool-refresh "+pool.Name+"), or name another volume (virsh vol-list "+pool.Name+").")
	}
	if err != nil {
		return baseImage{}, err
	}
	description, err := h.describeVolume(ctx, vol)
	if err != nil {
		return baseImage{}, err
	}
	base := baseImage{Path: description.Target.Path}
	if description.Target.Format != nil {
		base.Format = image.Format(description.Target.Format.Type)
	}
	if description.Capacity != nil {
		base.Capacity = description.Capacity.Value
	}
	switch {
	case base.Format != image.QCOW2 && base.Format != image.Raw:
		return refuse(fmt.Errorf("it is of format %q, neither qcow2 nor raw", base.Format), another)
	case description.BackingStore != nil && description.BackingStore.Path != "":
		return refuse(errors.New("it stands on another volume itself, as the disks of machines do"), another)
	}
	user, err := h.userOf(ctx, base.Path)
	if err != nil {
		return baseImage{}, err
	}
	if user != "" {
		return refuse(fmt.Errorf("domain %s has it as its disk: what it writes would damage every machine on it", user),
			"Copy it (virsh vol-clone), and name the copy.")
	}
	return base, accept(base.Capacity)
}

// pruneImage removes the base image of an instance whose root disk is gone, if
// that is asked for and nothing else stands on it. The marker goes first: from
// then on nobody new takes the image, and who has taken it before fetches it
// again.
func (b *Backend) pruneImage(ctx context.Context, h *host, meta metadata) error {
	if !b.pruneImages || meta.Pool == "" || meta.Image.SHA256 == "" {
		return nil
	}
	pool, err := h.findPool(ctx, meta.Pool)
	if errors.Is(err, errNoPool) {
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := h.locks.lock(ctx, baseLock(meta.Pool, meta.Image.SHA256))
	if err != nil {
		return h.fault("waiting for others on the image of an instance", err)
	}
	defer unlock()
	// What people put on it by hand the pool may not know yet.
	if err := h.refreshPool(ctx, pool.StoragePool); err != nil {
		return err
	}
	inUse, err := h.baseInUse(ctx, pool.StoragePool, meta.Image.SHA256)
	if err != nil || inUse {
		return err
	}
	if err := h.deleteVolume(ctx, pool.StoragePool, markerName(meta.Image.SHA256)); err != nil {
		return err
	}
	// Another process may have put an overlay on it meanwhile.
	if inUse, err = h.baseInUse(ctx, pool.StoragePool, meta.Image.SHA256); err != nil || inUse {
		return err
	}
	copies, err := h.listVolumes(ctx, pool.StoragePool, basePrefix(meta.Image.SHA256)+"-")
	if err != nil {
		return err
	}
	for _, vol := range copies {
		if err := h.deleteVolume(ctx, pool.StoragePool, vol.Name); err != nil {
			return err
		}
	}
	return nil
}

// baseInUse tells whether a volume stands on a copy of a base image, its marker
// aside.
func (h *host) baseInUse(ctx context.Context, pool libvirt.StoragePool, sha256 string) (bool, error) {
	files, err := h.backingFiles(ctx, pool, func(name string) bool { return strings.HasPrefix(name, basePrefix(sha256)) })
	for file := range files {
		if strings.HasPrefix(path.Base(file), basePrefix(sha256)) {
			return true, nil
		}
	}
	return false, err
}
