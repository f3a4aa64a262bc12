package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

func kvmAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"host": schema.StringAttribute{
			MarkdownDescription: "Name of a host in the provider's `kvm.hosts`. Changing it replaces the instance; the old host must stay in `kvm.hosts` until that is done.",
			Required:            true,
			Validators:          []validator.String{entryName},
		},
		"machine_type": schema.StringAttribute{
			MarkdownDescription: "Name of a size in the provider's `kvm.machine_types`. Without it `vcpus`, `memory_mib` and `disk_gib` are all required for a new machine. " +
				"Changing it changes the sizes, as below.",
			Optional:   true,
			Computed:   true,
			Validators: []validator.String{nonEmpty},
		},
		"vcpus": schema.Int64Attribute{
			MarkdownDescription: "Number of virtual CPUs, at least 1. Default: the machine type's. Changing it changes the machine in place, with a restart if it runs; the plan says so.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.Int64{int64validator.AtLeast(1)},
		},
		"memory_mib": schema.Int64Attribute{
			MarkdownDescription: "Memory in MiB, at least 128 for a new machine. Default: the machine type's. Changing it changes the machine in place, with a restart if it runs; the plan says so.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.Int64{int64validator.AtLeast(1)},
		},
		"disk_gib": schema.Int64Attribute{
			MarkdownDescription: "Size of the root disk in GiB, at least 1 and not smaller than the image's virtual size. Default: the machine type's. A larger value grows the disk in place, while the machine runs; " +
				"its file system grows at once where the guest agent may run programs, and else on the next boot. A smaller value is refused.",
			Optional:   true,
			Computed:   true,
			Validators: []validator.Int64{int64validator.AtLeast(1)},
		},
		"image": schema.StringAttribute{
			MarkdownDescription: "Name of an image in the provider's `kvm.images`; required for a new machine. Another image, or another checksum of the same one, replaces the instance; another name for the same checksum does not. " +
				"Of an adopted machine the image is not known, and it may be left out.",
			Optional:   true,
			Validators: []validator.String{nonEmpty},
		},
		"network": schema.StringAttribute{
			MarkdownDescription: "Name of the libvirt network that the machine is on by its only interface, with an address from DHCP. For anything else there is `interfaces`. Default: `default`, where `interfaces` is not given. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.String{nonEmpty, stringvalidator.ConflictsWith(path.MatchRelative().AtParent().AtName("interfaces"))},
		},
		"interfaces": schema.ListNestedAttribute{
			MarkdownDescription: "The network interfaces, instead of `network`. Clients dial the addresses of the first before those of the others, and only the first takes its default route from DHCP. Changing them replaces the instance.",
			Optional:            true,
			Validators:          []validator.List{listvalidator.SizeAtLeast(1)},
			NestedObject:        schema.NestedAttributeObject{Attributes: interfaceAttributes()},
		},
		"pool": schema.StringAttribute{
			MarkdownDescription: "Name of the libvirt storage pool for the machine's disks and the image. Default: `default`. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Default:             stringdefault.StaticString(defaultPool),
			Validators:          []validator.String{nonEmpty},
		},
		"virt_type": schema.StringAttribute{
			MarkdownDescription: "`kvm` for hardware virtualisation, `qemu` for emulation (slow). Default: what the host can do, decided at creation. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.String{stringvalidator.OneOf("kvm", "qemu")},
		},
		"cpu_mode": schema.StringAttribute{
			MarkdownDescription: "The virtual CPU: `host-passthrough` is the host's own, `host-model` libvirt's nearest to it, `maximum` all that the hypervisor can do. Default: `host-passthrough` under KVM, `maximum` without it. Changing it changes the machine in place, with a restart if it runs.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.String{stringvalidator.OneOf(cpuModes...)},
		},
		"firmware": schema.StringAttribute{
			MarkdownDescription: "`bios` or `efi`. Default: `bios` on x86-64, `efi` elsewhere. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.String{stringvalidator.OneOf("bios", "efi")},
		},
		"secure_boot": schema.BoolAttribute{
			MarkdownDescription: "Whether the firmware boots signed systems only; needs `firmware = \"efi\"`. Default: `false`. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
		},
		"autostart": schema.BoolAttribute{
			MarkdownDescription: "Whether the machine starts when its host does. Default: `true`. Changing it changes the machine in place, without a restart.",
			Optional:            true,
			Computed:            true,
			Default:             booldefault.StaticBool(true),
		},
		"console_log": schema.StringAttribute{
			MarkdownDescription: "Absolute path of a file on the host that gets what the machine writes to its serial console. It outlives the machine. Default: none. Changing it changes the machine in place, with a restart if it runs.",
			Optional:            true,
			Validators:          []validator.String{absolutePath},
		},
		"vendor_data": schema.StringAttribute{
			MarkdownDescription: "cloud-init vendor-data to give the machine instead of the provider's own, a script that installs the QEMU guest agent where the image lacks it. Its first line says what it is, as `#cloud-config` and `#!/bin/sh` do. Changing it replaces the instance.",
			Optional:            true,
			Validators:          []validator.String{vendorData},
		},
		"uuid": schema.StringAttribute{
			MarkdownDescription: "UUID of the libvirt domain. Another machine of the same name has another one, and is never taken for this instance.",
			Computed:            true,
		},
		"mac": schema.StringAttribute{
			MarkdownDescription: "MAC address of the first network interface. Unless given, it follows from host and name, so a replaced instance keeps its DHCP lease.",
			Computed:            true,
		},
		"image_sha256": schema.StringAttribute{
			MarkdownDescription: "Checksum of the image the machine was made from. When the provider's `kvm.images` has another one, the instance is replaced. Null where the image is a volume.",
			Computed:            true,
		},
		"image_volume": schema.StringAttribute{
			MarkdownDescription: "Name of the volume the machine was made from, where its image is one.",
			Computed:            true,
		},
		"missing_volumes": schema.ListAttribute{
			MarkdownDescription: "Which of the machine's own volumes are gone: `root`, `seed`. A missing seed is made again in place; a missing root disk replaces the instance.",
			Computed:            true,
			ElementType:         types.StringType,
		},
	}
}

// cpuModes are the values of cpu_mode.
var cpuModes = []string{"host-passthrough", "host-model", "maximum"}

func interfaceAttributes() map[string]schema.Attribute {
	one := func(what string) schema.Attribute {
		return schema.StringAttribute{
			MarkdownDescription: what + " Exactly one of `network`, `bridge` and `macvtap` is to be given.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		}
	}
	return map[string]schema.Attribute{
		"network": one("Name of a libvirt network."),
		"bridge":  one("Name of a bridge of the host."),
		"macvtap": one("Name of a network device of the host, which is shared by macvtap in bridge mode. The host itself cannot reach the machine by it."),
		"portgroup": schema.StringAttribute{
			MarkdownDescription: "Name of a portgroup of `network`. Default: the network's own.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"vlan": schema.Int64Attribute{
			MarkdownDescription: "VLAN ID, 1 to 4094, where the network or bridge supports tagging (Open vSwitch, SR-IOV, and Linux bridges from libvirt 11.0).",
			Optional:            true,
			Validators:          []validator.Int64{int64validator.Between(1, 4094)},
		},
		"mtu": schema.Int64Attribute{
			MarkdownDescription: "MTU in bytes, 576 to 65535. Default: the host's choice.",
			Optional:            true,
			Validators:          []validator.Int64{int64validator.Between(576, 65535)},
		},
		"model": schema.StringAttribute{
			MarkdownDescription: "Model of the device, such as `e1000e`. Default: `virtio`.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"mac": schema.StringAttribute{
			MarkdownDescription: "MAC address, like `52:54:00:12:34:56`. Default: one that follows from host, name and the interface's place.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.String{macAddress},
		},
		"addresses": schema.ListAttribute{
			MarkdownDescription: "Static addresses with their prefix lengths, like `192.0.2.10/24`. Default: an IPv4 address from DHCP.",
			Optional:            true,
			ElementType:         types.StringType,
			Validators:          []validator.List{listvalidator.SizeAtLeast(1), listvalidator.ValueStringsAre(addressWithPrefix)},
		},
		"gateways": schema.ListAttribute{
			MarkdownDescription: "Default gateways beside static addresses, at most one each for IPv4 and IPv6.",
			Optional:            true,
			ElementType:         types.StringType,
			Validators:          []validator.List{listvalidator.SizeAtLeast(1), listvalidator.ValueStringsAre(ipAddress)},
		},
		"nameservers": schema.ListAttribute{
			MarkdownDescription: "DNS servers beside static addresses.",
			Optional:            true,
			ElementType:         types.StringType,
			Validators:          []validator.List{listvalidator.SizeAtLeast(1), listvalidator.ValueStringsAre(ipAddress)},
		},
	}
}
