package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
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
		"hosts": hostsAttribute(),
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
		"images": imagesAttribute(),
		"start_pool": schema.BoolAttribute{
			MarkdownDescription: "Whether a storage pool that is not active is started when something is to be made or deleted in it. Default: `false`, which makes it an error. Plan and refresh never start one.",
			Optional:            true,
		},
		"prune_images": schema.BoolAttribute{
			MarkdownDescription: "Whether an image is deleted from a host with the last instance that stands on it. Default: `false`, which keeps it for the next instance. " +
				"For hosts whose images no other configuration uses: an image that another run is just about to use may have to be fetched again. Volumes named by `volume:` are never deleted.",
			Optional: true,
		},
	}
}
