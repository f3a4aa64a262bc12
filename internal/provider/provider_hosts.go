package provider

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
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
	TLS types.Object `tfsdk:"tls"`
}

type sshModel struct {
	PrivateKeyFile types.String `tfsdk:"private_key_file"`
	PrivateKey     types.String `tfsdk:"private_key"`
	Passphrase     types.String `tfsdk:"passphrase"`
	HostKey        types.String `tfsdk:"host_key"`
	KnownHostsFile types.String `tfsdk:"known_hosts_file"`
	Bastions       types.List   `tfsdk:"bastions"`
	Timeout        types.String `tfsdk:"timeout"`
}

type bastionModel struct {
	Host           types.String `tfsdk:"host"`
	Port           types.Int64  `tfsdk:"port"`
	User           types.String `tfsdk:"user"`
	PrivateKeyFile types.String `tfsdk:"private_key_file"`
	PrivateKey     types.String `tfsdk:"private_key"`
	Passphrase     types.String `tfsdk:"passphrase"`
	HostKey        types.String `tfsdk:"host_key"`
	KnownHostsFile types.String `tfsdk:"known_hosts_file"`
}

type tlsModel struct {
	CAFile          types.String `tfsdk:"ca_file"`
	CA              types.String `tfsdk:"ca"`
	CertificateFile types.String `tfsdk:"certificate_file"`
	Certificate     types.String `tfsdk:"certificate"`
	PrivateKeyFile  types.String `tfsdk:"private_key_file"`
	PrivateKey      types.String `tfsdk:"private_key"`
	ServerName      types.String `tfsdk:"server_name"`
	Timeout         types.String `tfsdk:"timeout"`
}

func hostsAttribute() schema.Attribute {
	return schema.MapNestedAttribute{
		MarkdownDescription: "The hypervisors, by the name that an instance's `kvm.host` refers to. The name is part of the instance's `id`. A host that instances in the state are on must stay here under its name: before renaming it or taking it out, destroy them, or make Terraform forget them with `terraform state rm`; import finds them under another name of the same host.",
		Optional:            true,
		Validators:          []validator.Map{mapvalidator.NoNullValues(), mapvalidator.KeysAre(entryName)},
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"uri": schema.StringAttribute{
				MarkdownDescription: "Required. The libvirt connection URI:\n\n" +
					"  - `qemu:///system` or `qemu:///session` for a daemon on this machine, with `?socket=/path` where it listens at an unusual place;\n" +
					"  - `qemu+ssh://USER@HOST[:PORT]/system` for one reached over SSH (see `ssh`), with `?socket=/path` likewise;\n" +
					"  - `qemu+tls://HOST[:16514]/system`, or `qemu://HOST/system`, for one reached over TLS (see `tls`), whose `auth_tls` is `none`;\n" +
					"  - `qemu+tcp://HOST[:16509]/system` for one reached over plain TCP, whose `auth_tcp` is `none`: nothing is encrypted, and whoever reaches the port is root on that machine.\n\n" +
					"The daemon's socket is looked for as `libvirt-sock`, then as `virtqemud-sock`.",
				Optional: true,
			},
			"ssh": schema.SingleNestedAttribute{
				MarkdownDescription: "How to log in at a `qemu+ssh` host. Without it the keys of the SSH agent (`SSH_AUTH_SOCK`) are tried, and the host's key is looked up in `~/.ssh/known_hosts`. " +
					"`~/.ssh/config` is not read: what stands there (`HostName`, `User`, `Port`, `IdentityFile`, `ProxyJump` ...) has to be given here or in `uri`. " +
					"Changing it changes nothing on instances.",
				Optional:   true,
				Attributes: sshAttributes(),
			},
			"tls": schema.SingleNestedAttribute{
				MarkdownDescription: "The certificates for a `qemu+tls` host. What is left out is looked for where libvirt's own clients do: in `~/.pki/libvirt` (`cacert.pem`, `clientcert.pem`, `clientkey.pem`), unless Terraform runs as root, " +
					"then at `/etc/pki/CA/cacert.pem`, `/etc/pki/libvirt/clientcert.pem` and `/etc/pki/libvirt/private/clientkey.pem`. Changing it changes nothing on instances.",
				Optional:   true,
				Attributes: tlsAttributes(),
			},
		}},
	}
}

func sshAttributes() map[string]schema.Attribute {
	attributes := loginAttributes("the host")
	attributes["bastions"] = schema.ListNestedAttribute{
		MarkdownDescription: "The SSH servers to go through, in order, as `ssh -J` does: the first is reached from the machine Terraform runs on, each next one and then the host from the one before, which also looks its name up. " +
			"Each must allow TCP forwarding. What a bastion leaves out (user, keys, known-hosts file) is as for the host; but its host key is its own.",
		Optional: true,
		NestedObject: schema.NestedAttributeObject{
			Attributes: bastionAttributes(),
		},
	}
	attributes["timeout"] = schema.StringAttribute{
		MarkdownDescription: "Longest time for connecting, logging in (at the bastions, too) and opening the daemon, all together, as a duration like `15s`. Default: `30s`.",
		Optional:            true,
		Validators:          []validator.String{duration},
	}
	return attributes
}

func bastionAttributes() map[string]schema.Attribute {
	attributes := loginAttributes("the bastion")
	attributes["host"] = schema.StringAttribute{
		MarkdownDescription: "Required. Name or address of the bastion, without user and port.",
		Optional:            true,
	}
	attributes["port"] = schema.Int64Attribute{
		MarkdownDescription: "Port of its SSH server. Default: 22.",
		Optional:            true,
		Validators:          []validator.Int64{int64validator.NoneOf(0)}, // which would mean the default
	}
	attributes["user"] = schema.StringAttribute{
		MarkdownDescription: "User to log in as. Default: the user of `uri`.",
		Optional:            true,
		Validators:          []validator.String{nonEmpty},
	}
	return attributes
}

// loginAttributes is what it takes to log in at an SSH server.
func loginAttributes(server string) map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"private_key_file": schema.StringAttribute{
			MarkdownDescription: "Path of the private key on the machine Terraform runs on. It is tried before the SSH agent's keys.",
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
			MarkdownDescription: "The public key of " + server + " as a line of `authorized_keys` form (`ssh-ed25519 AAAA...`). When given, only this key is accepted, and no known-hosts file is read.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"known_hosts_file": schema.StringAttribute{
			MarkdownDescription: "Path of the known-hosts file to look the key of " + server + " up in. Hashed names, several keys, `@revoked` and `@cert-authority` lines count. Default: `~/.ssh/known_hosts`.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
	}
}

func tlsAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"ca_file": schema.StringAttribute{
			MarkdownDescription: "Path of the certificates of the authorities that may have issued the daemon's certificate, in PEM format.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"ca": schema.StringAttribute{
			MarkdownDescription: "The certificates of the authorities themselves, in PEM format.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"certificate_file": schema.StringAttribute{
			MarkdownDescription: "Path of the client certificate to show to the daemon, in PEM format. It needs its private key beside it.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"certificate": schema.StringAttribute{
			MarkdownDescription: "The client certificate itself, in PEM format.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"private_key_file": schema.StringAttribute{
			MarkdownDescription: "Path of the client certificate's private key, in PEM format and not encrypted.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"private_key": schema.StringAttribute{
			MarkdownDescription: "The private key itself, in PEM format and not encrypted.",
			Optional:            true,
			Sensitive:           true,
		},
		"server_name": schema.StringAttribute{
			MarkdownDescription: "The name to find in the daemon's certificate. Default: the host of `uri`.",
			Optional:            true,
			Validators:          []validator.String{nonEmpty},
		},
		"timeout": schema.StringAttribute{
			MarkdownDescription: "Longest time for connecting, the TLS handshake and opening the daemon, all together, as a duration like `15s`. Default: `30s`.",
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
		Bastions:       readBastions(ctx, ssh.Bastions, &diags),
		Timeout:        readTimeout(ssh.Timeout),
	}
	tls := as[tlsModel](ctx, model.TLS, &diags)
	host.TLS = connection.TLS{
		CAFile:          tls.CAFile.ValueString(),
		CA:              tls.CA.ValueString(),
		CertificateFile: tls.CertificateFile.ValueString(),
		Certificate:     tls.Certificate.ValueString(),
		PrivateKeyFile:  tls.PrivateKeyFile.ValueString(),
		PrivateKey:      egress.NewSecret(tls.PrivateKey.ValueString()),
		ServerName:      tls.ServerName.ValueString(),
		Timeout:         readTimeout(tls.Timeout),
	}
	return host, diags
}

// readBastions reads what is known of the bastions.
func readBastions(ctx context.Context, list types.List, diags *diag.Diagnostics) []connection.Bastion {
	var bastions []connection.Bastion
	for _, element := range list.Elements() {
		object, ok := element.(types.Object)
		if !ok {
			continue
		}
		b := as[bastionModel](ctx, object, diags)
		bastions = append(bastions, connection.Bastion{
			Host:           b.Host.ValueString(),
			Port:           int(b.Port.ValueInt64()),
			User:           b.User.ValueString(),
			PrivateKeyFile: b.PrivateKeyFile.ValueString(),
			PrivateKey:     egress.NewSecret(b.PrivateKey.ValueString()),
			Passphrase:     egress.NewSecret(b.Passphrase.ValueString()),
			HostKey:        b.HostKey.ValueString(),
			KnownHostsFile: b.KnownHostsFile.ValueString(),
		})
	}
	return bastions
}

// readTimeout gives zero for what is no duration: its validator says so.
func readTimeout(text types.String) time.Duration {
	timeout, err := time.ParseDuration(text.ValueString())
	if err != nil {
		return 0
	}
	return timeout
}

// cautionHost warns of what is allowed and not wise.
func cautionHost(name string, host connection.Host) diag.Diagnostics {
	var diags diag.Diagnostics
	if connection.Unencrypted(host) {
		diags.AddAttributeWarning(hostPath(name).AtName("uri"), fmt.Sprintf("Host %q is reached without encryption", name),
			"Plain TCP is neither encrypted nor authenticated: whoever is between can read what is sent, the seeds of instances with their password hashes among it, and whoever reaches the port controls that machine. "+
				"Use qemu+tls or qemu+ssh, unless the network between is your own and nobody else's.")
	}
	return diags
}

// diagnoseHost puts what is wrong with a host at the attribute it names.
func diagnoseHost(name string, err error) diag.Diagnostic {
	at := hostPath(name)
	if f, ok := errors.AsType[*egress.Fault](err); ok {
		prefix := "kvm.hosts." + name + "."
		for step := range strings.SplitSeq(strings.TrimPrefix(f.Attribute, prefix), ".") {
			if !strings.HasPrefix(f.Attribute, prefix) {
				continue
			}
			if index, err := strconv.Atoi(step); err == nil {
				at = at.AtListIndex(index)
			} else {
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
