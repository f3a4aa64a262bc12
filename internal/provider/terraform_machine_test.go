package provider

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// changedOnly wants the plan to change these top-level attributes and no other.
func changedOnly(names ...string) planCheck {
	return func(plan *tfjson.Plan) error {
		for _, rc := range plan.ResourceChanges {
			before, _ := rc.Change.Before.(map[string]any)
			after, _ := rc.Change.After.(map[string]any)
			open, _ := rc.Change.AfterUnknown.(map[string]any)
			var got []string
			for name := range before {
				if asJSON(before[name]) != asJSON(after[name]) || strings.Contains(asJSON(open[name]), "true") {
					got = append(got, name)
				}
			}
			if len(got) != len(names) || !subset(got, names) {
				return fmt.Errorf("the plan changes %q, want %q", got, names)
			}
		}
		return nil
	}
}

func subset(some, of []string) bool {
	for _, s := range some {
		if !strings.Contains(" "+strings.Join(of, " ")+" ", " "+s+" ") {
			return false
		}
	}
	return true
}

func TestTerraformChangesTheMachineInPlace(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	machine := func(more string) string {
		return `kvm = { host = "hv1", machine_type = "small", image = "debian12", ` + more + ` }`
	}
	base := instance(machine(""), proxyArgument)
	steps := []resource.TestStep{{Config: base}}
	for _, next := range []string{
		instance(machine(`memory_mib = 1024`), proxyArgument),
		instance(machine(`vcpus = 4, cpu_mode = "host-model"`), proxyArgument),
		instance(machine(`disk_gib = 8`), proxyArgument),
		instance(machine(`disk_gib = 8, autostart = false`), proxyArgument),
		instance(machine(`disk_gib = 8, console_log = "/var/log/ci.log"`), proxyArgument),
	} {
		steps = append(steps, resource.TestStep{Config: next, ConfigPlanChecks: resource.ConfigPlanChecks{
			PreApply: []plancheck.PlanCheck{
				plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate), noUnknowns, changedOnly("kvm"),
			},
			PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
		}})
	}
	steps = append(steps, resource.TestStep{
		Config: instance(machine(`disk_gib = 8`), proxyArgument, `description = "Leaves by the first uplink"`),
		ConfigPlanChecks: resource.ConfigPlanChecks{
			PreApply:             []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate), changedOnly("kvm", "description")},
			PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
		},
	}, resource.TestStep{
		Config:      instance(machine(`disk_gib = 7`), proxyArgument),
		ExpectError: regexp.MustCompile(`(?s)Root disk cannot shrink.*kvm.disk_gib = 7.*has\s+8\s+GiB.*Keep it at 8`),
	})
	run(t, backend, steps...)
	if got := backend.count("create"); got != 1 {
		t.Errorf("the machine was made %d times, want once", got)
	}
}

func TestTerraformStopsAndStartsAMachineByRunning(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	on, off := instance(kvmArgument, proxyArgument), instance(kvmArgument, proxyArgument, `running = false`)
	empty := resource.ConfigPlanChecks{PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}
	run(t, backend,
		resource.TestStep{Config: off, ConfigPlanChecks: empty, ConfigStateChecks: []statecheck.StateCheck{
			stateText("state", "stopped"),
			statecheck.ExpectKnownValue(address, tfjsonpath.New("ready"), knownvalue.Bool(false)),
			statecheck.ExpectKnownValue(address, tfjsonpath.New("address"), knownvalue.Null()),
		}},
		resource.TestStep{Config: on, ConfigPlanChecks: empty, ConfigStateChecks: []statecheck.StateCheck{
			stateText("state", "running"), stateText("http_url", "http://192.0.2.99:3128"),
		}},
		resource.TestStep{Config: off, ConfigPlanChecks: empty, ConfigStateChecks: []statecheck.StateCheck{stateText("state", "stopped")}},
		// Somebody starts it: one change, back to stopped.
		resource.TestStep{
			PreConfig: func() { backend.change(ciID, func(i *egress.Instance) { i.State = egress.Running }) },
			Config:    off,
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate), noUnknowns, changedOnly("state")},
			},
			ConfigStateChecks: []statecheck.StateCheck{stateText("state", "stopped")},
		},
	)
}

func TestTerraformShowsEveryDriftOfTheMachineAndUndoesIt(t *testing.T) {
	t.Parallel()
	configuration := instance(kvmArgument, proxyArgument, `description = "as written"`)
	for name, c := range map[string]struct {
		drift   func(*egress.Instance)
		action  plancheck.ResourceActionType
		changed []string
	}{
		"autostart":     {func(i *egress.Instance) { i.KVM.Autostart = false }, plancheck.ResourceActionUpdate, []string{"kvm"}},
		"description":   {func(i *egress.Instance) { i.Description = "" }, plancheck.ResourceActionUpdate, []string{"description"}},
		"vcpus":         {func(i *egress.Instance) { i.KVM.VCPUs = 7 }, plancheck.ResourceActionUpdate, []string{"kvm"}},
		"memory":        {func(i *egress.Instance) { i.KVM.MemoryMiB = 99 }, plancheck.ResourceActionUpdate, []string{"kvm"}},
		"console log":   {func(i *egress.Instance) { i.KVM.ConsoleLog = "/tmp/x" }, plancheck.ResourceActionUpdate, []string{"kvm"}},
		"seed missing":  {func(i *egress.Instance) { i.KVM.MissingVolumes = []string{"seed"} }, plancheck.ResourceActionUpdate, []string{"kvm"}},
		"root missing":  {func(i *egress.Instance) { i.KVM.MissingVolumes = []string{"root", "seed"} }, plancheck.ResourceActionReplace, nil},
		"configuration": {func(i *egress.Instance) { i.ConfigHash = "other" }, plancheck.ResourceActionReplace, nil},
		"image":         {func(i *egress.Instance) { i.KVM.ImageSHA256 = sumB }, plancheck.ResourceActionReplace, nil},
		"network":       {func(i *egress.Instance) { i.KVM.Interfaces = []egress.Interface{{Network: "lan", MAC: i.KVM.MAC}} }, plancheck.ResourceActionReplace, nil},
		"second interface": {func(i *egress.Instance) {
			i.KVM.Interfaces = append([]egress.Interface{}, i.KVM.Interfaces[0], egress.Interface{Bridge: "br0", MAC: "52:54:00:00:00:09"})
		}, plancheck.ResourceActionReplace, nil},
		"no interface": {func(i *egress.Instance) { i.KVM.Interfaces = nil }, plancheck.ResourceActionReplace, nil},
		"firmware":     {func(i *egress.Instance) { i.KVM.Firmware = "efi" }, plancheck.ResourceActionNoop, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			checks := []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, c.action)}
			if c.changed != nil {
				checks = append(checks, noUnknowns, changedOnly(c.changed...))
			}
			run(t, backend,
				resource.TestStep{Config: configuration},
				resource.TestStep{
					PreConfig: func() {
						backend.change(ciID, func(i *egress.Instance) { machine := *i.KVM; i.KVM = &machine; c.drift(i) })
					},
					Config:           configuration,
					ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: checks, PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}},
				},
			)
		})
	}
}

func TestTerraformRefusesToDestroyOrReplaceAProtectedInstance(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	protected := instance(kvmArgument, proxyArgument, `deletion_protection = true`)
	run(t, backend,
		resource.TestStep{Config: protected},
		resource.TestStep{Config: protected, Destroy: true, ExpectError: regexp.MustCompile(`(?s)"ci-egress-1" is protected.*deletion_protection\s+to\s+false`)},
		resource.TestStep{
			Config:      instance(kvmArgument, proxyArgument, `deletion_protection = true`, `user_data = "#cloud-config"`),
			ExpectError: regexp.MustCompile(`(?s)"ci-egress-1" is protected.*config_hash\s+needs\s+another\s+machine`),
		},
		resource.TestStep{Config: instance(kvmArgument, proxyArgument), ConfigPlanChecks: resource.ConfigPlanChecks{
			PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate), changedOnly("deletion_protection")},
		}},
	)
}

func TestTerraformReplacesAProtectedInstanceWhoseCreationFailed(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	backend.halfway = true
	backend.fail("create", errors.New("the proxy does not answer"))
	protected := instance(kvmArgument, proxyArgument, `deletion_protection = true`)
	run(t, backend,
		resource.TestStep{Config: protected, ExpectError: regexp.MustCompile(`proxy does not answer`)},
		resource.TestStep{
			PreConfig: func() { backend.fail("create", nil) }, Config: protected,
			ConfigPlanChecks: expectAction(plancheck.ResourceActionReplace),
		},
		resource.TestStep{Config: instance(kvmArgument, proxyArgument)},
	)
}

func TestTerraformTakesAnotherMachineOfTheNameForAnother(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	var ours egress.Instance
	configuration := instance(kvmArgument, proxyArgument)
	runWith(t, factories(backend),
		resource.TestStep{Config: configuration},
		resource.TestStep{
			PreConfig: func() { backend.change(ciID, func(i *egress.Instance) { ours = *i; i.UID = "another" }) },
			Config:    configuration, PlanOnly: true, ExpectNonEmptyPlan: true,
			ConfigPlanChecks: resource.ConfigPlanChecks{PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionCreate)}},
		},
		resource.TestStep{
			PreConfig:        func() { backend.change(ciID, func(i *egress.Instance) { *i = ours }) },
			Config:           configuration,
			ConfigPlanChecks: expectAction(plancheck.ResourceActionNoop),
		},
	)
}

func TestTerraformKeepsInterfacesAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	configuration := instance(`kvm = {
    host = "hv1", machine_type = "small", image = "debian12"
    interfaces = [
      { bridge = "br0", vlan = 20, model = "virtio", addresses = ["192.0.2.10/24", "2001:DB8::10/64"], gateways = ["192.0.2.1"], nameservers = ["192.0.2.53"] },
      { network = "lan", portgroup = "proxies", mtu = 1400, mac = "52:54:00:AA:BB:CC" },
      { macvtap = "eno1" },
    ]
  }`, proxyArgument)
	run(t, backend,
		resource.TestStep{
			Config: configuration, ConfigPlanChecks: expectEmptyAfter(),
			ConfigStateChecks: []statecheck.StateCheck{
				statecheck.ExpectKnownValue(address, tfjsonpath.New("kvm").AtMapKey("network"), knownvalue.Null()),
				statecheck.ExpectKnownValue(address, tfjsonpath.New("kvm").AtMapKey("interfaces").AtSliceIndex(1).AtMapKey("mac"), knownvalue.StringExact("52:54:00:AA:BB:CC")),
			},
		},
		resource.TestStep{ResourceName: address, ImportState: true, ImportStateId: ciID.String(), ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"kvm.interfaces.0.model", "kvm.interfaces.0.addresses.1", "kvm.interfaces.1.mac"}},
		resource.TestStep{Config: instance(kvmArgument, proxyArgument), ConfigPlanChecks: expectAction(plancheck.ResourceActionReplace)},
	)
	nic := backend.specs[0].KVM.Interfaces[0]
	if nic.Bridge != "br0" || nic.VLAN != 20 || nic.Model != "" || fmt.Sprint(nic.Addresses, nic.Gateways, nic.Nameservers) != "[192.0.2.10/24 2001:db8::10/64] [192.0.2.1] [192.0.2.53]" {
		t.Errorf("the backend was given %+v", nic)
	}
}
