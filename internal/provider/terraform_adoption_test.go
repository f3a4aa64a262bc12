package provider

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// oldID is a machine whose name no instance could be made under.
var oldID = egress.ProviderID{Backend: egress.KVM, Location: "hv1", Name: "Old_Proxy.1"}

// foreign is a machine that somebody made with other tools.
func foreign() egress.Instance {
	return egress.Instance{
		ID: oldID, UID: "11111111-2222-4333-8444-555555555555", Foreign: true, State: egress.Running, Description: "by hand",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")},
		KVM: &egress.KVMInstance{
			UUID: "11111111-2222-4333-8444-555555555555", MAC: "52:54:00:00:00:99", VCPUs: 3, MemoryMiB: 64, DiskGiB: 20, Pool: "default",
			VirtType: "kvm", CPUMode: "custom", Firmware: "efi", SecureBoot: true,
			Interfaces: []egress.Interface{{Bridge: "br0", Model: "e1000", MAC: "52:54:00:00:00:99"}},
		},
	}
}

// cli runs terraform on a directory against a provider in this process.
type cli struct {
	t   *testing.T
	dir string
	env []string
}

func newCLI(t *testing.T, backend egress.Backend, configuration string) cli {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reattach, closed := make(chan *plugin.ReattachConfig), make(chan struct{})
	const source = "registry.terraform.io/hashicorp/egressproxy"
	go func() {
		_ = tf6server.Serve(source, func() tfprotov6.ProviderServer {
			server, err := factories(backend)["egressproxy"]()
			if err != nil {
				panic(err)
			}
			return server
		}, tf6server.WithDebug(ctx, reattach, closed), tf6server.WithLoggingSink(t), tf6server.WithGoPluginLogger(hclog.NewNullLogger()))
	}()
	served := <-reattach
	t.Cleanup(func() { cancel(); <-closed })
	text, err := json.Marshal(map[string]any{source: map[string]any{
		"Protocol": string(served.Protocol), "ProtocolVersion": served.ProtocolVersion, "Pid": os.Getpid(), "Test": true,
		"Addr": map[string]any{"Network": served.Addr.Network(), "String": served.Addr.String()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := cli{t, t.TempDir(), append(os.Environ(), "TF_REATTACH_PROVIDERS="+string(text), "TF_VAR_password="+secretText, "TF_VAR_user_data="+secretUserData, "TF_IN_AUTOMATION=1")}
	c.write("main.tf", configuration)
	c.run("init", "-backend=false")
	return c
}

func (c cli) write(name, text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c cli) run(args ...string) string {
	c.t.Helper()
	program := os.Getenv("TF_ACC_TERRAFORM_PATH")
	if program == "" {
		program = "terraform"
	}
	command := exec.CommandContext(c.t.Context(), program, append(args, "-no-color")...)
	command.Dir, command.Env = c.dir, c.env
	out, err := command.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestTerraformGeneratesAConfigurationThatPlansNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		id      egress.ProviderID
		prepare func(*fakeBackend)
		has     []string
	}{
		"of a machine of another tool": {oldID, func(b *fakeBackend) { b.change(oldID, func(i *egress.Instance) { *i = foreign() }) },
			[]string{`name +?= +?"Old_Proxy.1"`, `bridge +?= +?"br0"`, `memory_mib +?= +?64`, `disk_gib +?= +?20`, `secure_boot +?= +?true`, `autostart +?= +?false`}},
		"of a stopped machine whose network cannot be told": {oldID, func(b *fakeBackend) {
			b.change(oldID, func(i *egress.Instance) {
				*i = foreign()
				i.State, i.Addresses, i.KVM.Interfaces, i.KVM.MAC, i.KVM.DiskGiB = egress.Stopped, nil, nil, "", 0
			})
		}, []string{`running +?= +?false`}},
		"of an instance with passwords": {ciID, func(b *fakeBackend) {
			b.change(ciID, func(i *egress.Instance) {
				spec := egress.Spec{
					ID: ciID, Tags: egress.Tags{"team": "platform", "env": "prod"},
					Proxy: &egress.Proxy{HTTPPort: 3128, Policy: egress.Policy{Default: egress.Deny, AllowDomains: []string{"example.org"}, AllowPorts: []int{443}},
						Clients: map[string]egress.Client{"ci": {PasswordVersion: 3}}},
					KVM: &egress.KVMSpec{VCPUs: 1, MemoryMiB: 512, DiskGiB: 4, Pool: "default", Autostart: true, Interfaces: []egress.Interface{{Network: "default"}},
						Image: egress.Image{Name: "debian12", SHA256: sumA}},
				}
				*i = egress.Instance{ID: ciID, UID: "u", State: egress.Running, Tags: spec.Tags, ConfigHash: spec.ConfigHash(), Proxy: spec.Proxy,
					HealthCheck: egress.HealthCheck{Target: "example.org:443", From: egress.FromClient, Interval: 1e9}, KVM: fakeMachine("u", spec)}
			})
		}, []string{`password_wo_version +?= +?3`, `machine_type +?= +?"small"`, `image +?= +?"debian12"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			c.prepare(backend)
			terraform := newCLI(t, backend, providerBlockWithoutTags+`
import {
  to = egressproxy_instance.adopted
  id = "`+c.id.String()+`"
}
`)
			terraform.run("plan", "-generate-config-out=generated.tf", "-out=plan")
			generated, err := os.ReadFile(filepath.Join(terraform.dir, "generated.tf"))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.has {
				if !regexp.MustCompile(want).Match(generated) {
					t.Errorf("the generated configuration lacks %s:\n%s", want, generated)
				}
			}
			terraform.run("apply", "plan")
			terraform.run("validate")
			terraform.run("plan", "-detailed-exitcode")
			if changed := backend.count("update") + backend.count("create"); changed != 0 {
				t.Errorf("the machine was changed %d times", changed)
			}
		})
	}
}

// providerBlockWithoutTags is one whose tags an adopted machine does not lack.
var providerBlockWithoutTags = strings.Replace(providerBlock, `default_tags = { team = "platform" }`, "", 1)

func TestTerraformAdoptsAMachineInPlaceAndNeverReplacesItForWhatWasUnknown(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	backend.change(ciID, func(i *egress.Instance) {
		*i = foreign()
		i.ID, i.KVM.MemoryMiB, i.KVM.DiskGiB = ciID, 512, 4
		i.KVM.Interfaces = []egress.Interface{{Network: "default", MAC: i.KVM.MAC}}
	})
	configuration := instance(`kvm = { host = "hv1", machine_type = "small", image = "debian12", firmware = "efi", secure_boot = true }`, proxyArgument) + `import {
  to = egressproxy_instance.ci
  id = "kvm://hv1/ci-egress-1"
}
`
	run(t, backend,
		resource.TestStep{
			Config: configuration,
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply:             []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate)},
				PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
			},
			ConfigStateChecks: []statecheck.StateCheck{stateText("kvm.mac", "52:54:00:00:00:99"), stateText("kvm.image_sha256", sumA)},
		},
		// From here on it is an instance like any other.
		resource.TestStep{
			Config:           strings.ReplaceAll(configuration, `"example.org"`, `"example.com"`),
			ConfigPlanChecks: expectAction(plancheck.ResourceActionReplace),
		},
	)
	spec := backend.specs[0]
	if spec.UID != foreign().UID || spec.Proxy == nil || spec.Proxy.Clients["ci"].Password.Reveal() != secretText {
		t.Errorf("the backend was given %+v", spec)
	}
}
