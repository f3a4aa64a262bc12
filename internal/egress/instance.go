package egress

import (
	"net/netip"
	"time"
)

// Instance is what an egress proxy was found to be.
type Instance struct {
	// ID names it; the zero ProviderID means that nothing exists.
	ID ProviderID
	// State is what its machine does.
	State State
	// Unfinished tells that its creation was begun and not completed.
	Unfinished bool
	// Ready tells whether the proxy answered the last probe that ran; only
	// Create and Update probe.
	Ready bool
	// Addresses are those clients can dial, the one to prefer first.
	Addresses []netip.Addr
	// Tags are those stored on the object.
	Tags Tags
	// ConfigHash is Spec.ConfigHash of the configuration it was made with;
	// empty on a foreign object.
	ConfigHash string
	// Proxy is the configuration it was made with, without secrets; nil when
	// that is not known or it has none.
	Proxy *Proxy
	// HealthCheck is what it was made with; the zero value when not known.
	HealthCheck HealthCheck
	// UserDataVersion is user_data_wo_version as it was made with; 0 when it
	// had no write-only user-data, or that is not known.
	UserDataVersion int64
	// CreatedAt is when its creation began; the zero time when not known.
	CreatedAt time.Time
	// KVM is set when ID.Backend is KVM.
	KVM *KVMInstance
}

// KVMInstance is what a libvirt domain was found to be.
type KVMInstance struct {
	// UUID is the domain's.
	UUID string
	// MAC is the first interface's.
	MAC string
	// VCPUs is the number of virtual CPUs.
	VCPUs int
	// MemoryMiB is the memory in MiB.
	MemoryMiB int
	// DiskGiB is the root disk's size in whole GiB, rounded down.
	DiskGiB int
	// Image is the image's name it was made from; empty when not known.
	Image string
	// ImageSHA256 is the base image's checksum; empty when not known.
	ImageSHA256 string
	// Pool is the storage pool of the root disk; empty when not known.
	Pool string
	// Network is the libvirt network of the first interface; empty when it is
	// on none.
	Network string
	// VirtType is "kvm" or "qemu".
	VirtType string
}

// State is what an instance's machine does.
type State string

// The states.
const (
	Provisioning State = "provisioning"
	Running      State = "running"
	Stopped      State = "stopped"
)
