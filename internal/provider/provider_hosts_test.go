package provider

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
)

// checkProvider validates a provider block.
func checkProvider(t *testing.T, block tree) []*tfprotov6.Diagnostic {
	t.Helper()
	p := newClient(t, untouchable{t})
	resp, err := p.server.ValidateProviderConfig(t.Context(), &tfprotov6.ValidateProviderConfigRequest{
		Config: p.pack(value(t, p.schema.Provider.ValueType(), block)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Diagnostics
}

func TestWrongHostsGetOneDiagnosticAtTheAttributeAtFault(t *testing.T) {
	const ssh, tls = "kvm.hosts.hv2.ssh", "kvm.hosts.hv3.tls"
	for name, c := range map[string]struct {
		at    string
		value any
		want  string // path, and what the text must say
		says  []string
	}{
		"bastion without a host":      {ssh + ".bastions", []any{tree{"user": "ops"}}, ssh + ".bastions.0.host", []string{"host is empty"}},
		"bastion's port is none":      {ssh + ".bastions", []any{tree{"host": "a", "port": 0}}, ssh + ".bastions.0.port", []string{"0"}},
		"second bastion's address":    {ssh + ".bastions", []any{tree{"host": "a"}, tree{"host": "ops@b:22"}}, ssh + ".bastions.1.host", []string{`"ops@b:22"`, "port = 2222"}},
		"bastion's port":              {ssh + ".bastions", []any{tree{"host": "a", "port": 70000}}, ssh + ".bastions.0.port", []string{"70000", "65535"}},
		"bastion's host key":          {ssh + ".bastions", []any{tree{"host": "a", "host_key": "SHA256:abc"}}, ssh + ".bastions.0.host_key", []string{"public key"}},
		"bastion's passphrase alone":  {ssh + ".bastions", []any{tree{"host": "a", "passphrase": secretText}}, ssh + ".bastions.0.passphrase", []string{"no private key of its own"}},
		"bastion with two keys":       {ssh + ".bastions", []any{tree{"host": "a", "private_key": privateKey(t), "private_key_file": "y"}}, ssh + ".bastions.0.private_key_file", []string{"private_key"}},
		"SSH settings of a TLS host":  {"kvm.hosts.hv3.ssh", tree{"private_key_file": "/k"}, "kvm.hosts.hv3.ssh", []string{"does not go over SSH", "qemu+ssh://"}},
		"TLS settings of an SSH host": {"kvm.hosts.hv2.tls", tree{"ca_file": "/ca"}, "kvm.hosts.hv2.tls", []string{"does not go over TLS", "qemu+tls://"}},
		"certificate without a key":   {tls, tree{"certificate_file": "/c"}, tls, []string{"without its private key"}},
		"authority given twice":       {tls, tree{"ca_file": "/c", "ca": "x"}, tls + ".ca_file", []string{"both ca and ca_file"}},
		"authority of no form":        {tls, tree{"ca": "x"}, tls + ".ca", []string{"PEM"}},
		"private key of no form":      {tls, tree{"certificate_file": "/c", "private_key": secretText}, tls + ".private_key", []string{"PEM"}},
		"time limit of TLS":           {tls + ".timeout", "soon", tls + ".timeout", []string{`"soon"`, "30s"}},
		"user of a TLS host":          {"kvm.hosts.hv3.uri", "qemu+tls://root@hv3/system", "kvm.hosts.hv3.uri", []string{"qemu+ssh://user@hv3/system"}},
	} {
		t.Run(name, func(t *testing.T) {
			block := providerTree().with("kvm.hosts.hv3", tree{"uri": "qemu+tls://hv3.example.com/system", "tls": tree{}})
			diagnostics := checkProvider(t, block.with(c.at, c.value))
			expectOne(t, diagnostics, c.want, c.says)
			if strings.Contains(describe(diagnostics), secretText) {
				t.Error("the diagnostic repeats a secret")
			}
		})
	}
}

func TestWaysToHostsThatAreAccepted(t *testing.T) {
	for name, host := range map[string]tree{
		"session":                      {"uri": "qemu:///session"},
		"socket":                       {"uri": "qemu+unix:///system?socket=/srv/sock", "ssh": tree{"timeout": "5s"}},
		"TLS":                          {"uri": "qemu://hv3.example.com/system"},
		"own PKI":                      {"uri": "qemu+tls://192.0.2.1:7777/system", "tls": tree{"ca_file": "/ca", "certificate_file": "/c", "private_key_file": "/k", "server_name": "hv3", "timeout": "5s"}},
		"bastions":                     {"uri": "qemu+ssh://hv3/system", "ssh": tree{"bastions": []any{tree{"host": "jump", "port": 2222, "user": "ops"}, tree{"host": "2001:db8::1"}}}},
		"no bastion after all":         {"uri": "qemu+ssh://hv3/system", "ssh": tree{"bastions": []any{}}},
		"a bastion yet to be made":     {"uri": "qemu+ssh://hv3/system", "ssh": tree{"bastions": []any{tree{"host": unknown}}}},
		"bastions yet to be made":      {"uri": "qemu+ssh://hv3/system", "ssh": tree{"bastions": unknown}},
		"certificates yet to be made":  {"uri": "qemu://hv3/system", "tls": tree{"ca": unknown, "certificate": unknown, "private_key": unknown}},
		"TCP to a forward on this one": {"uri": "qemu+tcp://127.0.0.1/system"},
	} {
		t.Run(name, func(t *testing.T) {
			if d := checkProvider(t, providerTree().with("kvm.hosts.hv3", host)); len(d) != 0 {
				t.Error(describe(d))
			}
		})
	}
}

func TestPlainTCPIsWarnedOf(t *testing.T) {
	d := checkProvider(t, providerTree().with("kvm.hosts.hv3", tree{"uri": "qemu+tcp://hv3.example.com/system"}))
	if len(d) != 1 || d[0].Severity != tfprotov6.DiagnosticSeverityWarning || dotted(d[0].Attribute) != "kvm.hosts.hv3.uri" {
		t.Fatalf("want one warning at the URI, got:\n%s", describe(d))
	}
	for _, want := range []string{`"hv3"`, "without encryption", "qemu+tls or qemu+ssh"} {
		if !strings.Contains(d[0].Summary+" "+d[0].Detail, want) {
			t.Errorf("the warning does not say %q:\n%s", want, describe(d))
		}
	}
}

// TestEverythingOfAHostReachesTheConnection gives each attribute a value of its
// own: one that is read into the wrong place, or nowhere, shows.
func TestEverythingOfAHostReachesTheConnection(t *testing.T) {
	login := func(of string) map[string]attr.Value {
		return map[string]attr.Value{
			"private_key_file": types.StringValue(of + " key file"),
			"private_key":      types.StringValue(of + " key"),
			"passphrase":       types.StringValue(of + " passphrase"),
			"host_key":         types.StringValue(of + " host key"),
			"known_hosts_file": types.StringValue(of + " known hosts"),
		}
	}
	bastion := login("bastion")
	bastion["host"], bastion["port"], bastion["user"] = types.StringValue("jump"), types.Int64Value(2222), types.StringValue("ops")
	bastionType := typesOf(bastionAttributes())
	ssh := login("host")
	ssh["bastions"] = types.ListValueMust(types.ObjectType{AttrTypes: bastionType}, []attr.Value{types.ObjectValueMust(bastionType, bastion)})
	ssh["timeout"] = types.StringValue("5s")
	tls := map[string]attr.Value{
		"ca_file": types.StringValue("ca file"), "ca": types.StringValue("ca"),
		"certificate_file": types.StringValue("certificate file"), "certificate": types.StringValue("certificate"),
		"private_key_file": types.StringValue("key file"), "private_key": types.StringValue("key"),
		"server_name": types.StringValue("name"), "timeout": types.StringValue("7s"),
	}
	got, diags := readHost(t.Context(), "hv1", hostModel{
		URI: types.StringValue("uri"),
		SSH: types.ObjectValueMust(typesOf(sshAttributes()), ssh),
		TLS: types.ObjectValueMust(typesOf(tlsAttributes()), tls),
	})
	if diags.HasError() {
		t.Fatal(diags)
	}
	gotBastions := got.SSH.Bastions
	if want := (connection.Bastion{
		Host: "jump", Port: 2222, User: "ops", PrivateKeyFile: "bastion key file", PrivateKey: egress.NewSecret("bastion key"),
		Passphrase: egress.NewSecret("bastion passphrase"), HostKey: "bastion host key", KnownHostsFile: "bastion known hosts",
	}); len(gotBastions) != 1 || gotBastions[0] != want {
		t.Errorf("the bastions are %+v, want %+v", gotBastions, want)
	}
	if want := (connection.TLS{
		CAFile: "ca file", CA: "ca", CertificateFile: "certificate file", Certificate: "certificate",
		PrivateKeyFile: "key file", PrivateKey: egress.NewSecret("key"), ServerName: "name", Timeout: 7 * time.Second,
	}); got.TLS != want {
		t.Errorf("TLS is %+v, want %+v", got.TLS, want)
	}
	s := got.SSH
	if s.PrivateKeyFile != "host key file" || s.PrivateKey.Reveal() != "host key" || s.Passphrase.Reveal() != "host passphrase" ||
		s.HostKey != "host host key" || s.KnownHostsFile != "host known hosts" || s.Timeout != 5*time.Second || got.URI != "uri" || got.Name != "hv1" {
		t.Errorf("the host is %+v", got)
	}
}

// typesOf gives the types of a schema's attributes.
func typesOf(attributes map[string]schema.Attribute) map[string]attr.Type {
	out := map[string]attr.Type{}
	for name, attribute := range attributes {
		out[name] = attribute.GetType()
	}
	return out
}

func TestSecretsOfHostsAreMarked(t *testing.T) {
	for of, attributes := range map[string]map[string]schema.Attribute{"ssh": sshAttributes(), "bastions": bastionAttributes(), "tls": tlsAttributes()} {
		for name, attribute := range attributes {
			secret := name == "private_key" || name == "passphrase"
			if attribute.IsSensitive() != secret {
				t.Errorf("%s.%s: sensitive is %v, want %v", of, name, attribute.IsSensitive(), secret)
			}
		}
	}
}

// TestTheDocumentationSaysThatTheSSHConfigurationIsNotRead keeps a promise to
// those who would look for their ProxyJump in vain.
func TestTheDocumentationSaysThatTheSSHConfigurationIsNotRead(t *testing.T) {
	hosts, ok := hostsAttribute().(schema.MapNestedAttribute)
	if !ok {
		t.Fatal("hosts is no map of objects")
	}
	text := hosts.NestedObject.Attributes["ssh"].GetMarkdownDescription()
	for _, want := range []string{"`~/.ssh/config` is not read", "ProxyJump"} {
		if !strings.Contains(text, want) {
			t.Errorf("the documentation does not say %q: %s", want, text)
		}
	}
}
