package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
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
	interfaceTypes   = attributeTypes(interfaceAttributes())
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
			"A machine that was stopped shows in the plan as one change, `state` to `running`; one that is gone shows as a creation; " +
			"a host that cannot be asked is an error, and the state stays as it is.\n\n" +
			"Passwords and `user_data_wo` are write-only: they are in neither state nor plan. `user_data` is stored in the state as it is.",
		Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{
				MarkdownDescription: "Name of the machine and its host name: at most 63 lower-case letters, digits and hyphens, starting with a letter and ending with a letter or digit. An adopted machine keeps the name it has. Changing it replaces the instance.",
				Required:            true,
				Validators:          []validator.String{nonEmpty},
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
			"description": schema.StringAttribute{
				MarkdownDescription: "A note on the machine, which the hypervisor's own tools show. Changing it changes the instance in place, without a restart.",
				Optional:            true,
			},
			"running": schema.BoolAttribute{
				MarkdownDescription: "Whether the machine is to run. With `false` it is made and left off, or shut down. Default: `true`.",
				Optional:            true,
				Computed:            true,
				Default:             booldefault.StaticBool(true),
			},
			"deletion_protection": schema.BoolAttribute{
				MarkdownDescription: "Whether the instance is to be kept from being destroyed or replaced: such a plan fails. It is kept in the state only. Default: `false`.",
				Optional:            true,
				Computed:            true,
				Default:             booldefault.StaticBool(false),
			},
			"tags": schema.MapAttribute{
				MarkdownDescription: "Tags, stored on the machine beside the provider's `default_tags`. Changing them changes the instance in place, without a restart.",
				Optional:            true,
				ElementType:         types.StringType,
				Validators:          []validator.Map{mapvalidator.NoNullValues(), mapvalidator.KeysAre(nonEmpty)},
			},
			"timeouts": timeoutsAttribute(ctx),
			"id": schema.StringAttribute{
				MarkdownDescription: "ID of the instance, `kvm://HOST/NAME`; also the ID to import it by. Machines that other tools made can be imported too.",
				Computed:            true,
			},
			"state": schema.StringAttribute{
				MarkdownDescription: "What the machine does: `provisioning`, `running` or `stopped`. Where that is not what `running` asks for, the plan starts or stops it.",
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
				MarkdownDescription: "Identifies the configuration the machine was made with: `proxy` and the user-data, write-only values by their version alone. Where it changes, the instance is replaced. Null where the provider configured nothing.",
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
