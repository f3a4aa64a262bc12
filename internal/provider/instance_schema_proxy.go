package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/objectdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/setdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

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
			MarkdownDescription: "The client's password, required for a new machine. Write-only: it is in neither state nor plan, and only its hash reaches the machine. Changing it does nothing until `password_wo_version` changes.",
			Optional:            true,
			Sensitive:           true,
			WriteOnly:           true,
			Validators:          []validator.String{password},
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
