package egress

import (
	"net/netip"
	"time"
)

// Instance is what an egress proxy was found to be.
type Instance struct {
	// ID names it; the zero ProviderID means that nothing exists.
	ID ProviderID
	// UID is the object's own identity, which another object of the same name
	// does not have: a libvirt domain's UUID. Empty when not known.
	UID string
	// Foreign tells that this provider neither made nor adopted it.
	Foreign bool
	// Description is the note on it.
	Description string
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
	// empty on a foreign object, and where nothing of ours configured it.
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
	// ImageVolume is the name of the volume it was made from, when the image is
	// a volume of the pool.
	ImageVolume string
	// Interfaces are its network interfaces, with their MAC addresses. Nil when
	// it has none, or one that Interface cannot express.
	Interfaces []Interface
	// VirtType is "kvm" or "qemu".
	VirtType string
	// CPUMode is libvirt's; empty when the domain says nothing of its CPU.
	CPUMode string
	// Firmware is "bios" or "efi".
	Firmware string
	// SecureBoot tells whether the firmware enforces it.
	SecureBoot bool
	// Autostart tells whether it starts with its host.
	Autostart bool
	// ConsoleLog is the path on the host of its serial console's log; empty
	// when there is none.
	ConsoleLog string
	// MissingVolumes names those of its disks whose volume is gone: "root" and
	// "seed".
	MissingVolumes []string
}

// State is what an instance's machine does.
type State string

// The states.
const (
	Provisioning State = "provisioning"
	Running      State = "running"
	Stopped      State = "stopped"
)
