package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/objectdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/setdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// What the schema fills in.
const (
	defaultHTTPPort = 3128
	defaultNetwork  = "default"
	defaultPool     = "default"
	defaultVerdict  = string(egress.Deny)
)

// Attribute types of the nested attributes, for building their values.
var (
	kvmTypes         = attributeTypes(kvmAttributes())
	proxyTypes       = attributeTypes(proxyAttributes())
	clientTypes      = attributeTypes(clientAttributes())
	policyTypes      = attributeTypes(policyAttributes())
	healthCheckTypes = attributeTypes(healthCheckAttributes())
)

func attributeTypes(attributes map[string]schema.Attribute) map[string]attr.Type {
	out := make(map[string]attr.Type, len(attributes))
	for name, a := range attributes {
		out[name] = a.GetType()
	}
	return out
}

func instanceSchema(ctx context.Context) schema.Schema {
	return schema.Schema{
		Version: 0,
		MarkdownDescription: "One egress proxy: a machine that forwards HTTP and CONNECT traffic for authenticated clients.\n\n" +
			"Applying it succeeds only when the proxy really forwards: a connection through it to `health_check.target` brings " +
			"back data, a client without a password is refused, and so is the cloud metadata address.\n\n" +
			"A stopped machine shows in the plan as one change, `state` to `running`; a machine that is gone shows as a creation; " +
			"a host that cannot be asked is an error, and the state stays as it is.\n\n" +
			"Passwords and `user_data_wo` are write-only: they are in neither state nor plan. `user_data` is stored in the state as it is.",
		Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{
				MarkdownDescription: "Name of the machine and its host name: at most 63 lower-case letters, digits and hyphens, starting with a letter and ending with a letter or digit. Changing it replaces the instance.",
				Required:            true,
				Validators:          []validator.String{instanceName},
			},
			"kvm": schema.SingleNestedAttribute{
				MarkdownDescription: "The machine, on a libvirt host.",
				Required:            true,
				Attributes:          kvmAttributes(),
			},
			"proxy": schema.SingleNestedAttribute{
				MarkdownDescription: "The proxy's configuration. Changing anything in it replaces the instance, since the machine is configured on its first boot only. " +
					"Without it `user_data` or `user_data_wo` must configure the machine.",
				Optional:   true,
				Attributes: proxyAttributes(),
			},
			"user_data": schema.StringAttribute{
				MarkdownDescription: "Your own cloud-init user-data, sent beside the part that configures the proxy. Its first line says what it is, as `#cloud-config` and `#!/bin/sh` do. It is stored in the state: for anything secret take `user_data_wo`. " +
					"Changing it replaces the instance.",
				Optional: true,
			},
			"user_data_wo": schema.StringAttribute{
				MarkdownDescription: "Like `user_data`, but write-only: it is in neither state nor plan. Changing it does nothing until `user_data_wo_version` changes.",
				Optional:            true,
				Sensitive:           true,
				WriteOnly:           true,
			},
			"user_data_wo_version": schema.Int64Attribute{
				MarkdownDescription: "Version of `user_data_wo`, at least 1; required with it. Changing it replaces the instance.",
				Optional:            true,
				Validators:          []validator.Int64{int64validator.AtLeast(1)},
			},
			"health_check": schema.SingleNestedAttribute{
				MarkdownDescription: "When the instance counts as ready. Changing it changes the instance in place; the machine is not touched.",
				Optional:            true,
				Computed:            true,
				Attributes:          healthCheckAttributes(),
			},
			"tags": schema.MapAttribute{
				MarkdownDescription: "Tags, stored on the machine beside the provider's `default_tags`. Changing them changes the instance in place, without a restart.",
				Optional:            true,
				ElementType:         types.StringType,
				Validators:          []validator.Map{mapvalidator.NoNullValues(), mapvalidator.KeysAre(nonEmpty)},
			},
			"timeouts": timeoutsAttribute(ctx),
			"id": schema.StringAttribute{
				MarkdownDescription: "ID of the instance, `kvm://HOST/NAME`; also the ID to import it by. Only what the provider made can be imported.",
				Computed:            true,
			},
			"state": schema.StringAttribute{
				MarkdownDescription: "What the machine does: `provisioning`, `running` or `stopped`. The plan of a machine that is not running starts it.",
				Computed:            true,
			},
			"ready": schema.BoolAttribute{
				MarkdownDescription: "Whether the proxy answered when it was last asked. A refresh asks it only what needs no password; a proxy that does not answer is a warning, not a change.",
				Computed:            true,
			},
			"addresses": schema.ListAttribute{
				MarkdownDescription: "IP addresses that clients can dial, the one to prefer first. A running machine that tells none for the moment keeps those it had.",
				Computed:            true,
				ElementType:         types.StringType,
			},
			"address": schema.StringAttribute{
				MarkdownDescription: "The first of `addresses`; null when there is none.",
				Computed:            true,
			},
			"http_url": schema.StringAttribute{
				MarkdownDescription: "URL of the HTTP proxy, `http://ADDRESS:PORT`. It never carries credentials. Null without `proxy`.",
				Computed:            true,
			},
			"config_hash": schema.StringAttribute{
				MarkdownDescription: "Identifies the configuration the machine was made with: `proxy` and the user-data, write-only values by their version alone. Where it changes, the instance is replaced.",
				Computed:            true,
			},
			"created_at": schema.StringAttribute{
				MarkdownDescription: "When the instance's creation began, in RFC 3339 format and UTC.",
				Computed:            true,
			},
			"tags_all": schema.MapAttribute{
				MarkdownDescription: "The tags on the machine: `tags` and the provider's `default_tags`.",
				Computed:            true,
				ElementType:         types.StringType,
			},
		},
	}
}

func kvmAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"host": schema.StringAttribute{
			MarkdownDescription: "Name of a host in the provider's `kvm.hosts`. Changing it replaces the instance; the old host must stay in `kvm.hosts` until that is done.",
			Required:            true,
			Validators:          []validator.String{entryName},
		},
		"machine_type": schema.StringAttribute{
			MarkdownDescription: "Name of a size in the provider's `kvm.machine_types`. Without it `vcpus`, `memory_mib` and `disk_gib` are all required. " +
				"Changing it replaces the instance where that changes a size.",
			Optional:   true,
			Computed:   true,
			Validators: []validator.String{nonEmpty},
		},
		"vcpus": schema.Int64Attribute{
			MarkdownDescription: "Number of virtual CPUs, at least 1. Default: the machine type's. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.Int64{int64validator.AtLeast(1)},
		},
		"memory_mib": schema.Int64Attribute{
			MarkdownDescription: "Memory in MiB, at least 128. Default: the machine type's. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.Int64{int64validator.AtLeast(minMemoryMiB)},
		},
		"disk_gib": schema.Int64Attribute{
			MarkdownDescription: "Size of the root disk in GiB, at least 1 and not smaller than the image's virtual size. Default: the machine type's. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.Int64{int64validator.AtLeast(1)},
		},
		"image": schema.StringAttribute{
			MarkdownDescription: "Name of an image in the provider's `kvm.images`. Another image, or another checksum of the same one, replaces the instance; another name for the same checksum does not.",
			Required:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"network": schema.StringAttribute{
			MarkdownDescription: "Name of the libvirt network the machine is on. Default: `default`. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Default:             stringdefault.StaticString(defaultNetwork),
			Validators:          []validator.String{nonEmpty},
		},
		"pool": schema.StringAttribute{
			MarkdownDescription: "Name of the libvirt storage pool for the machine's disks and the image. Instances of the same name on two hosts must not have their disks in one shared directory. Default: `default`. Changing it replaces the instance.",
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
		"uuid": schema.StringAttribute{
			MarkdownDescription: "UUID of the libvirt domain.",
			Computed:            true,
		},
		"mac": schema.StringAttribute{
			MarkdownDescription: "MAC address of the first network interface. It follows from host and name, so a replaced instance keeps its DHCP lease.",
			Computed:            true,
		},
		"image_sha256": schema.StringAttribute{
			MarkdownDescription: "Checksum of the image the machine was made from. When the provider's `kvm.images` has another one, the instance is replaced.",
			Computed:            true,
		},
	}
}

func proxyAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"http_port": schema.Int64Attribute{
			MarkdownDescription: "TCP port of the HTTP and CONNECT listener. Default: `3128`. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Default:             int64default.StaticInt64(defaultHTTPPort),
			Validators:          []validator.Int64{tcpPort},
		},
		"clients": schema.MapNestedAttribute{
			MarkdownDescription: "Who may use the proxy, by user name; at least one, since a listener without clients would be open to everyone. Changing them replaces the instance.",
			Optional:            true,
			Validators:          []validator.Map{mapvalidator.NoNullValues(), mapvalidator.KeysAre(clientName)},
			NestedObject:        schema.NestedAttributeObject{Attributes: clientAttributes()},
		},
		"policy": schema.SingleNestedAttribute{
			MarkdownDescription: "Where clients may go. Default: nowhere but to their own `allow_domains`, on ports 80 and 443. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Default:             objectdefault.StaticValue(policyObject(defaultPolicy())),
			Attributes:          policyAttributes(),
		},
	}
}

func clientAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"password_wo": schema.StringAttribute{
			MarkdownDescription: "Required. The client's password. Write-only: it is in neither state nor plan, and only its hash reaches the machine. Changing it does nothing until `password_wo_version` changes.",
			Optional:            true,
			Sensitive:           true,
			WriteOnly:           true,
			Validators:          []validator.String{requiredInEntry{}, password},
		},
		"password_wo_version": schema.Int64Attribute{
			MarkdownDescription: "Required. Version of `password_wo`, at least 1. Changing it replaces the instance.",
			Optional:            true,
			Validators:          []validator.Int64{requiredInEntry{}, int64validator.AtLeast(1)},
		},
		"allow_domains": allowDomains("Domains this client may reach beside the policy's."),
	}
}

func policyAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"default": schema.StringAttribute{
			MarkdownDescription: "Verdict on a domain that no list names: `deny` or `allow`. Default: `deny`. Changing it replaces the instance.",
			Optional:            true,
			Computed:            true,
			Default:             stringdefault.StaticString(defaultVerdict),
			Validators:          []validator.String{stringvalidator.OneOf(string(egress.Deny), string(egress.Allow))},
		},
		"allow_domains": allowDomains("Domains every client may reach."),
		"allow_ports": schema.SetAttribute{
			MarkdownDescription: "TCP ports that may be reached; all others are refused, whatever the domain. Default: `[80, 443]`. Changing them replaces the instance.",
			Optional:            true,
			Computed:            true,
			ElementType:         types.Int64Type,
			Default:             setdefault.StaticValue(portSet(defaultPolicy().AllowPorts)),
			Validators:          []validator.Set{setvalidator.SizeAtLeast(1), setvalidator.ValueInt64sAre(tcpPort)},
		},
	}
}

func allowDomains(what string) schema.Attribute {
	return schema.SetAttribute{
		MarkdownDescription: what + " `a.example.org` is exactly that host, `.example.org` that domain and everything below it. Default: none. Changing them replaces the instance.",
		Optional:            true,
		Computed:            true,
		ElementType:         types.StringType,
		Default:             setdefault.StaticValue(stringSet(nil)),
		Validators:          []validator.Set{setvalidator.ValueStringsAre(domain)},
	}
}

func healthCheckAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"target": schema.StringAttribute{
			MarkdownDescription: "`HOST:PORT` that must be reachable through the proxy; the policy must permit it. Default: the first single host, in alphabetical order, in the policy's `allow_domains`, else in those of the clients, on port 443 if `allow_ports` has it, else on the first of them. Required where no list names a single host.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.String{hostPort},
		},
		"from": schema.StringAttribute{
			MarkdownDescription: "Where the check runs: `client` is the machine Terraform runs on, `none` checks nothing and takes a machine that runs and has an address as ready. Default: `client`, or `none` without `proxy`.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.String{stringvalidator.OneOf(string(egress.FromClient), string(egress.FromNone))},
		},
		"interval": schema.StringAttribute{
			MarkdownDescription: "Time between two checks while waiting, as a duration like `500ms` or `2s`. Default: `1s`.",
			Optional:            true,
			Computed:            true,
			Validators:          []validator.String{duration},
		},
	}
}

func timeoutsAttribute(ctx context.Context) schema.Attribute {
	const form = " A duration like `90s` or `1h30m`."
	attribute := timeouts.Attributes(ctx, timeouts.Opts{
		Create: true, Read: true, Update: true, Delete: true,
		CreateDescription: "Longest time for a creation, the image's download and the machine's first boot included." + form + " Default: `15m`.",
		ReadDescription:   "Longest time for a refresh of this instance." + form + " Default: `2m`.",
		UpdateDescription: "Longest time for a change in place." + form + " Default: `15m`.",
		DeleteDescription: "Longest time for a removal." + form + " Default: `5m`.",
	})
	if nested, ok := attribute.(schema.SingleNestedAttribute); ok {
		nested.MarkdownDescription = "Longest times for operations. Changing them changes nothing on the machine."
		return nested
	}
	return attribute
}
