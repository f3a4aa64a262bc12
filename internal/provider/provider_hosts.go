package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
)

type hostModel struct {
	URI types.String `tfsdk:"uri"`
	SSH types.Object `tfsdk:"ssh"`
}

type sshModel struct {
	PrivateKeyFile types.String `tfsdk:"private_key_file"`
	PrivateKey     types.String `tfsdk:"private_key"`
	Passphrase     types.String `tfsdk:"passphrase"`
	HostKey        types.String `tfsdk:"host_key"`
	KnownHostsFile types.String `tfsdk:"known_hosts_file"`
	Timeout        types.String `tfsdk:"timeout"`
}

func hostsAttribute() schema.Attribute {
	return schema.MapNestedAttribute{
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

func readHost(ctx context.Context, name string, model hostModel) (connection.Host, diag.Diagnostics) {
	var diags diag.Diagnostics
	host := connection.Host{Name: name, URI: model.URI.ValueString()}
	ssh := as[sshModel](ctx, model.SSH, &diags)
	host.SSH = connection.SSH{
		PrivateKeyFile: ssh.PrivateKeyFile.ValueString(),
		PrivateKey:     egress.NewSecret(ssh.PrivateKey.ValueString()),
		Passphrase:     egress.NewSecret(ssh.Passphrase.ValueString()),
		HostKey:        ssh.HostKey.ValueString(),
		KnownHostsFile: ssh.KnownHostsFile.ValueString(),
	}
	if timeout, err := time.ParseDuration(ssh.Timeout.ValueString()); err == nil { // else its validator says so
		host.SSH.Timeout = timeout
	}
	return host, diags
}

// diagnoseHost puts what is wrong with a host at the attribute it names.
func diagnoseHost(name string, err error) diag.Diagnostic {
	at := hostPath(name)
	if f, ok := errors.AsType[*egress.Fault](err); ok {
		prefix := "kvm.hosts." + name + "."
		for step := range strings.SplitSeq(strings.TrimPrefix(f.Attribute, prefix), ".") {
			if strings.HasPrefix(f.Attribute, prefix) {
				at = at.AtName(step)
			}
		}
	}
	detail, _ := explain(err)
	return diag.NewAttributeErrorDiagnostic(at, fmt.Sprintf("Invalid host %q", name), detail)
}

func hostPath(name string) path.Path {
	return path.Root("kvm").AtName("hosts").AtMapKey(name)
}
