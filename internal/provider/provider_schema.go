package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

func providerSchema() schema.Schema {
	return schema.Schema{
		MarkdownDescription: "Egress proxies as code: small machines that all outgoing traffic of a fleet, a CI farm or a sandbox " +
			"goes through, so that it leaves from a known address, with authentication and an allow-list.\n\n" +
			"Configuring the provider connects to nothing. Hosts are dialled when an instance on them is first read or changed, " +
			"so a host may be created in the same run as the instances on it.",
		Attributes: map[string]schema.Attribute{
			"kvm": schema.SingleNestedAttribute{
				MarkdownDescription: "The libvirt hosts, and what instances on them are made from.",
				Optional:            true,
				Attributes:          providerKVMAttributes(),
			},
			"default_tags": schema.MapAttribute{
				MarkdownDescription: "Tags of every instance, beside its own `tags`, which win where both name a key. Changing them changes the instances in place.",
				Optional:            true,
				ElementType:         types.StringType,
				Validators:          []validator.Map{mapvalidator.NoNullValues(), mapvalidator.KeysAre(nonEmpty)},
			},
		},
	}
}

func providerKVMAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"hosts": schema.MapNestedAttribute{
			MarkdownDescription: "The hypervisors, by the name that an instance's `kvm.host` refers to. The name is part of the instance's `id`. A host that instances in the state are on must stay here under its name: before renaming it or taking it out, destroy them, or make Terraform forget them with `terraform state rm`; import finds them under another name of the same host.",
			Optional:            true,
			Validators:          []validator.Map{mapvalidator.NoNullValues(), mapvalidator.KeysAre(entryName)},
			NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
				"uri": schema.StringAttribute{
					MarkdownDescription: "Required. The libvirt connection URI: `qemu:///system` for the daemon on this machine, `qemu+ssh://USER@HOST[:PORT]/system` for one reached over SSH.",
					Optional:            true,
				},
				"ssh": schema.SingleNestedAttribute{
					MarkdownDescription: "How to log in at a `qemu+ssh` host. Without it the keys of the SSH agent (`SSH_AUTH_SOCK`) are tried, and the host's key is looked up in `~/.ssh/known_hosts`.",
					Optional:            true,
					Attributes:          sshAttributes(),
				},
			}},
		},
		"machine_types": schema.MapNestedAttribute{
			MarkdownDescription: "Named sizes, by the name that an instance's `kvm.machine_type` refers to.",
			Optional:            true,
			Validators:          []validator.Map{mapvalidator.NoNullValues()},
			NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
				"vcpus": schema.Int64Attribute{
					MarkdownDescription: "Required. Number of virtual CPUs, at least 1.",
					Optional:            true,
					Validators:          []validator.Int64{requiredInEntry{}, int64validator.AtLeast(1)},
				},
				"memory_mib": schema.Int64Attribute{
					MarkdownDescription: "Required. Memory in MiB, at least 128.",
					Optional:            true,
					Validators:          []validator.Int64{requiredInEntry{}, int64validator.AtLeast(minMemoryMiB)},
				},
				"disk_gib": schema.Int64Attribute{
					MarkdownDescription: "Required. Size of the root disk in GiB, at least 1, and not smaller than the image's virtual size.",
					Optional:            true,
					Validators:          []validator.Int64{requiredInEntry{}, int64validator.AtLeast(1)},
				},
			}},
		},
		"images": schema.MapNestedAttribute{
			MarkdownDescription: "Disk images to start machines from, in qcow2 or raw format and not compressed, by the name that an instance's `kvm.image` refers to. An image is fetched once per host and storage pool.",
			Optional:            true,
			Validators:          []validator.Map{mapvalidator.NoNullValues()},
			NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
				"source": schema.StringAttribute{
					MarkdownDescription: "Required. An `https://` or `http://` URL, or the path of a file on the machine Terraform runs on. A new source with the same checksum changes nothing.",
					Optional:            true,
					Validators:          []validator.String{requiredInEntry{}, imageSource},
				},
				"sha256": schema.StringAttribute{
					MarkdownDescription: "Required. SHA-256 checksum of the file as it is at `source`, 64 hexadecimal digits. Changing it replaces the instances made from the image.",
					Optional:            true,
					Validators:          []validator.String{requiredInEntry{}, sha256Sum},
				},
			}},
		},
	}
}

func sshAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"private_key_file": schema.StringAttribute{
			MarkdownDescription: "Path of the private key on the machine Terraform runs on.",
			Optional:            true,
			Validators: []validator.String{nonEmpty,
				stringvalidator.ConflictsWith(path.MatchRelative().AtParent().AtName("private_key"))},
		},
		"private_key": schema.StringAttribute{
			MarkdownDescription: "The private key itself, in PEM or OpenSSH format.",
			Optional:            true,
			Sensitive:           true,
		},
		"passphrase": schema.StringAttribute{
			MarkdownDescription: "Passphrase of the private key.",
			Optional:            true,
			Sensitive:           true,
		},
		"host_key": schema.StringAttribute{
			MarkdownDescription: "The host's public key as a line of `authorized_keys` form (`ssh-ed25519 AAAA...`). When given, only this key is accepted, and no known-hosts file is read.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"known_hosts_file": schema.StringAttribute{
			MarkdownDescription: "Path of the known-hosts file to look the host's key up in. Default: `~/.ssh/known_hosts`.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"timeout": schema.StringAttribute{
			MarkdownDescription: "Longest time for connecting and logging in, as a duration like `15s`. Default: `30s`.",
			Optional:            true,
			Validators:          []validator.String{duration},
		},
	}
}
