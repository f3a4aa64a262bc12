package provider

import (
	"crypto/ed25519"
	"encoding/pem"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"golang.org/x/crypto/ssh"
)

func providerTree() tree {
	return tree{
		"kvm": tree{
			"hosts": tree{
				"hv1": tree{"uri": "qemu:///system"},
				"hv2": tree{"uri": "qemu+ssh://root@hv2.example.com/system", "ssh": tree{"timeout": "10s"}},
			},
			"machine_types": tree{"small": tree{"vcpus": 1, "memory_mib": 512, "disk_gib": 4}},
			"images":        tree{"debian12": tree{"source": "/images/debian-12.qcow2", "sha256": sumA}},
		},
		"default_tags": tree{"team": "platform"},
	}
}

func instanceTree() tree {
	return tree{
		"name": "ci-egress-1",
		"kvm":  tree{"host": "hv1", "machine_type": "small", "image": "debian12", "memory_mib": 1024},
		"proxy": tree{
			"http_port": 3128,
			"clients": tree{
				"ci": tree{"password_wo": secretText, "password_wo_version": 1, "allow_domains": []any{".github.com"}},
			},
			"policy": tree{"default": "deny", "allow_domains": []any{"example.org"}, "allow_ports": []any{80, 443}},
		},
		"health_check": tree{"target": "example.org:443", "from": "client", "interval": "1s"},
		"tags":         tree{"env": "prod"},
		"timeouts":     tree{"create": "20m"},
	}
}

func TestWrongProviderBlocksGetOneDiagnosticEach(t *testing.T) {
	for name, c := range map[string]struct {
		at    string
		value any
		want  string // path, and what the text must say
		says  []string
	}{
		"checksum too short":      {"kvm.images.debian12.sha256", "abc", "kvm.images.debian12.sha256", []string{`"abc"`, "64 hexadecimal digits"}},
		"volume with a checksum":  {"kvm.images.debian12.source", "volume:golden.qcow2", "kvm.images.debian12.sha256", []string{"golden.qcow2", "leave sha256 out"}},
		"volume without a name":   {"kvm.images.debian12.source", "volume:", "kvm.images.debian12.source", []string{`"volume:"`, "volume:debian-12.qcow2"}},
		"list that is no URL":     {"kvm.images.debian12.sha256", "ftp://images.example.com/SHA256SUMS", "kvm.images.debian12.sha256", []string{"ftp", "https://"}},
		"scheme of source":        {"kvm.images.debian12.source", "ftp://images.example.com/x.qcow2", "kvm.images.debian12.source", []string{"ftp", "https://"}},
		"scheme of uri":           {"kvm.hosts.hv1.uri", "xen:///system", "kvm.hosts.hv1.uri", []string{"xen", "qemu"}},
		"host's name":             {"kvm.hosts.h/v", tree{"uri": "qemu:///system"}, "kvm.hosts.h/v", []string{`"h/v"`, "letters, digits"}},
		"no virtual CPUs":         {"kvm.machine_types.small.vcpus", 0, "kvm.machine_types.small.vcpus", []string{"at least 1", "0"}},
		"too little memory":       {"kvm.machine_types.small.memory_mib", 64, "kvm.machine_types.small.memory_mib", []string{"at least 128", "64"}},
		"time limit of SSH":       {"kvm.hosts.hv2.ssh.timeout", "soon", "kvm.hosts.hv2.ssh.timeout", []string{`"soon"`, "30s"}},
		"host key":                {"kvm.hosts.hv2.ssh.host_key", "not a key", "kvm.hosts.hv2.ssh.host_key", []string{"public key"}},
		"two private keys":        {"kvm.hosts.hv2.ssh", tree{"private_key": privateKey(t), "private_key_file": "y"}, "kvm.hosts.hv2.ssh.private_key_file", []string{"private_key"}},
		"no URI":                  {"kvm.hosts.hv1.uri", nil, "kvm.hosts.hv1.uri", []string{"empty"}},
		"no checksum":             {"kvm.images.debian12.sha256", nil, "kvm.images.debian12.sha256", []string{"required"}},
		"default tag without key": {"default_tags", tree{"": "x"}, "default_tags.", []string{"empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newClient(t, untouchable{t})
			resp, err := p.server.ValidateProviderConfig(t.Context(), &tfprotov6.ValidateProviderConfigRequest{
				Config: p.pack(value(t, p.schema.Provider.ValueType(), providerTree().with(c.at, c.value))),
			})
			if err != nil {
				t.Fatal(err)
			}
			expectOne(t, resp.Diagnostics, c.want, c.says)
		})
	}
}

func privateKey(t *testing.T) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(block))
}

func TestWrongInstancesGetOneDiagnosticEachBeforeAnythingIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		at    string
		value any
		want  string
		says  []string
	}{
		"name in capitals":         {"name", "CI", "name", []string{`"CI"`, "lower-case"}},
		"name too long":            {"name", strings.Repeat("a", 64), "name", []string{"64", "63"}},
		"name ends in a hyphen":    {"name", "ci-", "name", []string{`"ci-"`, "letter or digit"}},
		"name starts with a digit": {"name", "1ci", "name", []string{`"1ci"`, "letter"}},
		"unknown host":             {"kvm.host", "hv9", "kvm.host", []string{`"hv9"`, "hv1, hv2"}},
		"unknown machine type":     {"kvm.machine_type", "huge", "kvm.machine_type", []string{`"huge"`, "small"}},
		"unknown image":            {"kvm.image", "debian13", "kvm.image", []string{`"debian13"`, "debian12"}},
		"sizes missing":            {"kvm", tree{"host": "hv1", "image": "debian12", "vcpus": 1}, "kvm", []string{"kvm.memory_mib", "kvm.disk_gib", "machine type"}},
		"virtualisation type":      {"kvm.virt_type", "xen", "kvm.virt_type", []string{"xen", "qemu"}},
		"nothing configures it":    {"proxy", nil, "proxy", []string{"user_data"}},
		"no clients":               {"proxy.clients", nil, "proxy.clients", []string{"open to everyone"}},
		"empty clients":            {"proxy.clients", tree{}, "proxy.clients", []string{"open to everyone"}},
		"client's name":            {"proxy.clients.a:b", tree{"password_wo": "x", "password_wo_version": 1}, "proxy.clients.a:b", []string{`"a:b"`, "colon"}},
		"no password":              {"proxy.clients.ci.password_wo", nil, "proxy.clients.ci.password_wo", []string{"required"}},
		"no password's version":    {"proxy.clients.ci.password_wo_version", nil, "proxy.clients.ci.password_wo_version", []string{"required"}},
		"empty password":           {"proxy.clients.ci.password_wo", "", "proxy.clients.ci.password_wo", []string{"empty"}},
		"password's version":       {"proxy.clients.ci.password_wo_version", 0, "proxy.clients.ci.password_wo_version", []string{"at least 1"}},
		"wildcard domain":          {"proxy.policy.allow_domains", []any{"example.org", "*.example.org"}, "proxy.policy.allow_domains.element", []string{"*.example.org", "wildcard"}},
		"client's domain":          {"proxy.clients.ci.allow_domains", []any{"10.0.0.1"}, "proxy.clients.ci.allow_domains.element", []string{"10.0.0.1"}},
		"port to be allowed":       {"proxy.policy.allow_ports", []any{443, 70000}, "proxy.policy.allow_ports.element", []string{"70000", "65535"}},
		"listener's port":          {"proxy.http_port", 0, "proxy.http_port", []string{"65535"}},
		"verdict":                  {"proxy.policy.default", "maybe", "proxy.policy.default", []string{"maybe", "deny"}},
		"target's form":            {"health_check.target", "example.org", "health_check.target", []string{`"example.org"`, "port"}},
		"target not permitted":     {"health_check.target", "example.com:443", "health_check.target", []string{`"example.com:443"`, "allow_domains"}},
		"target's port refused":    {"health_check.target", "example.org:22", "health_check.target", []string{`"example.org:22"`, "allow_ports"}},
		"no target to derive":      {"health_check.target", nil, "", nil},
		"interval":                 {"health_check.interval", "-1s", "health_check.interval", []string{`"-1s"`, "more than zero"}},
		"two kinds of user-data":   {"user_data_wo", "#cloud-config", "user_data_wo_version", []string{"user_data_wo_version to 1"}},
		"user-data of no kind":     {"user_data", "timezone: Europe/Berlin", "user_data", []string{"would ignore", "#cloud-config", "#!"}},
		"empty user-data":          {"user_data", "", "user_data", []string{"empty", "null"}},
		"version alone":            {"user_data_wo_version", 1, "user_data_wo", []string{"not given"}},
		"tag without key":          {"tags", tree{"": "x"}, "tags.", []string{"empty"}},
		"time limit":               {"timeouts.create", "soon", "timeouts.create", []string{"soon"}},
	} {
		t.Run(name, func(t *testing.T) {
			config := instanceTree().with(c.at, c.value)
			switch name {
			case "nothing configures it":
				config = config.with("health_check", nil)
			case "unknown machine type", "unknown image", "unknown host":
				config = config.with("kvm.memory_mib", nil)
			case "no target to derive":
				config = config.with("proxy.policy.allow_domains", []any{".example.org"})
				c.want, c.says = "health_check.target", []string{"HOST:PORT", "none"}
			}
			p := newClient(t, untouchable{t})
			if d := p.configure(providerTree()); len(d) != 0 {
				t.Fatal(describe(d))
			}
			diagnostics := p.validate(config)
			if len(errorsOf(diagnostics)) == 0 { // else Terraform never plans
				diagnostics = p.plan(config, p.nothing()).Diagnostics
			}
			expectOne(t, diagnostics, c.want, c.says)
			if strings.Contains(describe(diagnostics), secretText) {
				t.Errorf("the diagnostic shows a password: %s", describe(diagnostics))
			}
		})
	}
}

// TestWrongSecretUserDataIsRefusedWithoutShowingIt also makes sure that what
// the answer says is what someone needs who cannot see their own value in it.
func TestWrongSecretUserDataIsRefusedWithoutShowingIt(t *testing.T) {
	secret := "token: " + secretText
	for _, text := range []string{
		secret, secretText, "\n " + secret, "# cloud-config\n" + secret, "Content-Type: text/plain\n\n" + secret, "Content-Type: " + secretText + "\n\n",
		"Content-Type: multipart " + secretText + "\n", secretText + ": multipart/mixed\n\n", "\x1f" + secretText,
	} {
		p := newClient(t, untouchable{t})
		diagnostics := p.validate(instanceTree().with("user_data_wo", text).with("user_data_wo_version", 1))
		expectOne(t, diagnostics, "user_data_wo", []string{"user_data_wo", "would ignore", "#cloud-config", "#!", "#include", "Content-Type: multipart"})
		if said := describe(diagnostics); strings.Contains(said, secretText) || strings.Contains(said, "token") {
			t.Errorf("user-data %q is shown: %s", text, said)
		}
	}
}

func expectOne(t *testing.T, diagnostics []*tfprotov6.Diagnostic, at string, says []string) {
	t.Helper()
	if len(diagnostics) != 1 || diagnostics[0].Severity != tfprotov6.DiagnosticSeverityError {
		t.Fatalf("got %d diagnostics, want one error:\n%s", len(diagnostics), describe(diagnostics))
	}
	if got := dotted(diagnostics[0].Attribute); got != at {
		t.Errorf("the diagnostic is at %q, want %q", got, at)
	}
	for _, want := range says {
		if !strings.Contains(diagnostics[0].Summary+" "+diagnostics[0].Detail, want) {
			t.Errorf("the diagnostic does not say %q:\n%s", want, describe(diagnostics))
		}
	}
}

// TestAnyUnknownValueCanBeValidatedAndPlanned makes each place of the
// configuration unknown in turn, for a creation and for a change. Terraform
// refuses plans that contradict what is configured, so that is checked too.
func TestAnyUnknownValueCanBeValidatedAndPlanned(t *testing.T) {
	withUserData := instanceTree().with("user_data_wo", "#cloud-config").with("user_data_wo_version", 1)
	for _, place := range withUserData.paths() {
		t.Run(place, func(t *testing.T) {
			backend := newFakeBackend()
			p := newClient(t, backend)
			if d := p.configure(providerTree()); len(d) != 0 {
				t.Fatal(describe(d))
			}
			state := p.create(withUserData)
			config := withUserData.with(place, unknown)
			if d := p.validate(config); len(d) != 0 {
				t.Errorf("validating: %s", describe(d))
			}
			for name, prior := range map[string]tftypes.Value{"creation": p.nothing(), "change": state} {
				planned := p.plan(config, prior)
				if d := errorsOf(planned.Diagnostics); len(d) != 0 {
					t.Errorf("planning a %s: %s", name, describe(d))
					continue
				}
				contradicts(t, name, p.resource().Block.Attributes, value(t, p.resource().ValueType(), config), p.unpack(planned.PlannedState))
			}
		})
	}
}

// contradicts reports planned values that are not the configured ones.
func contradicts(t *testing.T, where string, attributes []*tfprotov6.SchemaAttribute, config, planned tftypes.Value) {
	t.Helper()
	if config.IsNull() || !config.IsKnown() {
		return
	}
	given, got := members(t, config), members(t, planned)
	for _, a := range attributes {
		want, is := given[a.Name], got[a.Name]
		switch {
		case a.WriteOnly:
			if !is.IsNull() {
				t.Errorf("%s: write-only %s is planned", where, a.Name)
			}
		case want.IsNull():
		case a.NestedType != nil && a.NestedType.Nesting == tfprotov6.SchemaObjectNestingModeSingle:
			contradicts(t, where+": "+a.Name, a.NestedType.Attributes, want, is)
		case a.NestedType != nil:
			if !want.IsKnown() {
				continue
			}
			for key, element := range members(t, want) {
				contradicts(t, where+": "+a.Name+"."+key, a.NestedType.Attributes, element, members(t, is)[key])
			}
		case !want.Equal(is):
			t.Errorf("%s: %s is configured as %s and planned as %s", where, a.Name, want, is)
		}
	}
}

// TestAnyUnknownPartOfTheProviderBlockCanBePlannedOn does the same with each
// place of the provider block.
func TestAnyUnknownPartOfTheProviderBlockCanBePlannedOn(t *testing.T) {
	for _, place := range providerTree().paths() {
		t.Run(place, func(t *testing.T) {
			p := newClient(t, untouchable{t})
			if d := p.configure(providerTree().with(place, unknown)); len(d) != 0 {
				t.Fatal(describe(d))
			}
			planned := p.plan(instanceTree(), p.nothing())
			if len(planned.Diagnostics) != 0 {
				t.Fatal(describe(planned.Diagnostics))
			}
			if id := at(t, p.unpack(planned.PlannedState), "id"); !id.Equal(tftypes.NewValue(tftypes.String, "kvm://hv1/ci-egress-1")) {
				t.Errorf("the ID is planned as %s", id)
			}
		})
	}
}

// TestWhatIsKnownOfAnEntryIsEnoughToPlanNothing goes through refresh and plan
// on a provider block in which something is open that the instance needs not.
func TestWhatIsKnownOfAnEntryIsEnoughToPlanNothing(t *testing.T) {
	for _, place := range []string{"kvm.images.debian12.source", "kvm.machine_types.small.memory_mib", "kvm.hosts.hv2", "kvm.hosts.hv2.ssh", "kvm.hosts.hv2.ssh.timeout"} {
		t.Run(place, func(t *testing.T) {
			p := newClient(t, newFakeBackend())
			config := instanceTree().with("health_check", tree{"from": "none"})
			p.configure(providerTree())
			state := p.create(config)
			if d := p.configure(providerTree().with(place, unknown)); len(d) != 0 {
				t.Fatal(describe(d))
			}
			read, err := p.server.ReadResource(t.Context(), &tfprotov6.ReadResourceRequest{TypeName: resourceType, CurrentState: p.pack(state)})
			if err != nil || len(read.Diagnostics) != 0 {
				t.Fatal(err, describe(read.Diagnostics))
			}
			refreshed := p.unpack(read.NewState)
			planned := p.plan(config, refreshed)
			if len(planned.Diagnostics) != 0 {
				t.Fatal(describe(planned.Diagnostics))
			}
			if diffs, err := p.unpack(planned.PlannedState).Diff(state); err != nil || len(diffs) != 0 || !refreshed.Equal(state) {
				t.Errorf("a change is planned: %v %v", diffs, err)
			}
		})
	}
}

func TestReadingOnAHostThatIsNotKnownYetSaysWhatToDo(t *testing.T) {
	made := newClient(t, newFakeBackend())
	made.configure(providerTree())
	state := made.create(instanceTree())

	p := newClient(t, untouchable{t})
	if d := p.configure(providerTree().with("kvm.hosts.hv1.uri", unknown)); len(d) != 0 {
		t.Fatal(describe(d))
	}
	resp, err := p.server.ReadResource(t.Context(), &tfprotov6.ReadResourceRequest{TypeName: resourceType, CurrentState: p.pack(state)})
	if err != nil {
		t.Fatal(err)
	}
	expectOne(t, resp.Diagnostics, "", []string{`host "hv1"`, "not created yet", "-refresh=false", "-target"})
	if !p.unpack(resp.NewState).Equal(state) {
		t.Errorf("the state changed")
	}
}

func TestReplacementIsAskedForExactlyWhereAChangeNeedsIt(t *testing.T) {
	user := instanceTree().with("kvm.vcpus", 1).with("kvm.disk_gib", 4)
	for name, c := range map[string]struct {
		config, block tree
		want          []string
		warns         bool
	}{
		"nothing":                           {user, providerTree(), nil, false},
		"name":                              {user.with("name", "other"), providerTree(), []string{"name"}, false},
		"host":                              {user.with("kvm.host", "hv2"), providerTree(), []string{"kvm.host"}, false},
		"host, unknown":                     {user.with("kvm.host", unknown), providerTree(), []string{"kvm.host"}, true},
		"memory":                            {user.with("kvm.memory_mib", 2048), providerTree(), nil, true},
		"checksum":                          {user, providerTree().with("kvm.images.debian12.sha256", sumB), []string{"kvm.image_sha256"}, false},
		"checksum in capitals":              {user, providerTree().with("kvm.images.debian12.sha256", strings.ToUpper(sumA)), nil, false},
		"checksum from a list":              {user, providerTree().with("kvm.images.debian12.sha256", "https://images.example.com/SHA256SUMS"), nil, false},
		"a volume instead of a file":        {user, providerTree().with("kvm.images.debian12", tree{"source": "volume:golden.qcow2"}), []string{"kvm.image_sha256"}, false},
		"source of the image":               {user, providerTree().with("kvm.images.debian12.source", "/other.qcow2"), nil, false},
		"source, unknown":                   {user, providerTree().with("kvm.images.debian12.source", unknown), nil, false},
		"checksum, unknown":                 {user, providerTree().with("kvm.images.debian12.sha256", unknown), []string{"kvm.image_sha256"}, true},
		"image, unknown":                    {user, providerTree().with("kvm.images.debian12", unknown), []string{"kvm.image_sha256"}, true},
		"checksum beside an unknown source": {user, providerTree().with("kvm.images.debian12", tree{"source": unknown, "sha256": sumB}), []string{"kvm.image_sha256"}, false},
		"a size, unknown":                   {instanceTree(), providerTree().with("kvm.machine_types.small.vcpus", unknown), nil, true},
		"a size beside an unknown one":      {instanceTree(), providerTree().with("kvm.machine_types.small", tree{"vcpus": 1, "memory_mib": unknown, "disk_gib": 8}), nil, false},
		"a size that is not used, unknown":  {instanceTree(), providerTree().with("kvm.machine_types.small.memory_mib", unknown), nil, false},
		"machine type, sizes the same":      {user.with("kvm.machine_type", nil), providerTree(), nil, false},
		"machine type's own size":           {instanceTree(), providerTree().with("kvm.machine_types.small.vcpus", 2), nil, true},
		"pool":                              {user.with("kvm.pool", "fast"), providerTree(), []string{"kvm.pool"}, false},
		"network":                           {user.with("kvm.network", "lan"), providerTree(), []string{"kvm.network"}, false},
		"virtualisation, as it is":          {user.with("kvm.virt_type", "qemu"), providerTree(), nil, false},
		"virtualisation":                    {user.with("kvm.virt_type", "kvm"), providerTree(), []string{"kvm.virt_type"}, false},
		"a client's domains":                {user.with("proxy.clients.ci.allow_domains", []any{"a.example"}), providerTree(), []string{"config_hash"}, false},
		"order of ports":                    {user.with("proxy.policy.allow_ports", []any{443, 80}), providerTree(), nil, false},
		"user-data":                         {user.with("user_data", "#cloud-config"), providerTree(), []string{"config_hash"}, false},
		"user-data, unknown":                {user.with("user_data", unknown), providerTree(), []string{"config_hash"}, true},
		"a password without a version":      {user.with("proxy.clients.ci.password_wo", "other"), providerTree(), nil, false},
		"a password's version":              {user.with("proxy.clients.ci.password_wo_version", 2), providerTree(), []string{"config_hash"}, false},
		"tags":                              {user.with("tags", tree{"env": "test"}), providerTree(), nil, false},
		"a larger disk":                     {user.with("kvm.disk_gib", 5), providerTree(), nil, false},
		"autostart":                         {user.with("kvm.autostart", false), providerTree(), nil, false},
		"description":                       {user.with("description", "a note"), providerTree(), nil, false},
		"protection":                        {user.with("deletion_protection", true), providerTree(), nil, false},
		"not to run":                        {user.with("running", false), providerTree(), nil, false},
		"not to run and more memory":        {user.with("running", false).with("kvm.memory_mib", 2048), providerTree(), nil, false},
		"CPU mode, as it is":                {user.with("kvm.cpu_mode", "maximum"), providerTree(), nil, false},
		"CPU mode":                          {user.with("kvm.cpu_mode", "host-model"), providerTree(), nil, true},
		"console log":                       {user.with("kvm.console_log", "/var/log/ci.log"), providerTree(), nil, true},
		"firmware, as it is":                {user.with("kvm.firmware", "bios"), providerTree(), nil, false},
		"firmware":                          {user.with("kvm.firmware", "efi"), providerTree(), []string{"kvm.firmware"}, false},
		"secure boot":                       {user.with("kvm.firmware", "efi").with("kvm.secure_boot", true), providerTree(), []string{"kvm.firmware", "kvm.secure_boot"}, false},
		"vendor-data":                       {user.with("kvm.vendor_data", "#cloud-config"), providerTree(), []string{"config_hash"}, false},
		"the network as an interface":       {user.with("kvm.interfaces", []any{tree{"network": "default"}}), providerTree(), nil, false},
		"the network's model, as it is":     {user.with("kvm.interfaces", []any{tree{"network": "default", "model": "virtio"}}), providerTree(), nil, false},
		"a bridge":                          {user.with("kvm.interfaces", []any{tree{"bridge": "br0"}}), providerTree(), []string{"kvm.interfaces"}, false},
		"a second interface":                {user.with("kvm.interfaces", []any{tree{"network": "default"}, tree{"network": "lan"}}), providerTree(), []string{"kvm.interfaces"}, false},
		"a static address":                  {user.with("kvm.interfaces", []any{tree{"network": "default", "addresses": []any{"192.0.2.9/24"}}}), providerTree(), []string{"kvm.interfaces"}, false},
		"a MAC address":                     {user.with("kvm.interfaces", []any{tree{"network": "default", "mac": "52:54:00:01:02:03"}}), providerTree(), []string{"kvm.interfaces"}, false},
		"interfaces, unknown":               {user.with("kvm.interfaces", unknown), providerTree(), []string{"kvm.interfaces"}, true},
		"an address, unknown":               {user.with("kvm.interfaces", []any{tree{"network": "default", "addresses": []any{unknown}}}), providerTree(), []string{"kvm.interfaces"}, true},
		"interval, written otherwise":       {user.with("health_check.interval", "1000ms"), providerTree(), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newClient(t, newFakeBackend())
			p.configure(providerTree())
			state := p.create(user)
			if d := p.configure(c.block); len(d) != 0 {
				t.Fatal(describe(d))
			}
			planned := p.plan(c.config, state)
			if d := errorsOf(planned.Diagnostics); len(d) != 0 {
				t.Fatal(describe(d))
			}
			if warns := len(planned.Diagnostics) > 0; warns != c.warns {
				t.Errorf("warned: %v, want %v: %s", warns, c.warns, describe(planned.Diagnostics))
			}
			var got []string
			for _, path := range planned.RequiresReplace {
				got = append(got, dotted(path))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("replacement for %v, want %v", got, c.want)
			}
		})
	}
}
