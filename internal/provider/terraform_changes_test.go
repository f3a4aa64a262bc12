package provider

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"
	"github.com/hashicorp/terraform-plugin-testing/config"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

func TestTerraformChangesInPlaceWhatNeedsNoNewMachine(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	base := instance(kvmArgument, proxyArgument, `tags = { env = "prod" }`)
	renamedImage := strings.ReplaceAll(base, "debian12", "bookworm")
	steps := []resource.TestStep{{Config: base}}
	for _, next := range []string{
		instance(kvmArgument, proxyArgument, `tags = { env = "test" }`),
		strings.ReplaceAll(base, `team = "platform"`, `team = "network"`),
		instance(kvmArgument, proxyArgument, `health_check = { from = "none" }`),
		instance(kvmArgument, proxyArgument, `timeouts = { create = "20m" }`),
		renamedImage,
		instance(`kvm = { host = "hv1", machine_type = "tiny", image = "debian12" }`, proxyArgument),
	} {
		next = strings.ReplaceAll(next, `machine_types = {`, `machine_types = { tiny = { vcpus = 1, memory_mib = 512, disk_gib = 4 },`)
		steps = append(steps, resource.TestStep{Config: next, ConfigPlanChecks: resource.ConfigPlanChecks{
			PreApply:             []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate), noUnknowns},
			PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
		}})
	}
	run(t, backend, steps...)
	if got := backend.count("create"); got != 1 {
		t.Errorf("the instance was made %d times, want once", got)
	}
}

func TestTerraformReplacesForChangesThatNeedANewMachine(t *testing.T) {
	t.Parallel()
	base := instance(kvmArgument, proxyArgument)
	backend := newFakeBackend()
	steps := []resource.TestStep{{Config: base}}
	for _, change := range [][2]string{
		{`allow_domains = ["example.org"]`, `allow_domains = ["example.org", "example.com"]`},
		{`password_wo_version = 1`, `password_wo_version = 2`},
		{sumA, sumB},
		{`memory_mib = 512`, `memory_mib = 1024`},
		{`image = "debian12"`, `image = "debian12", network = "isolated"`},
		{`"ci-egress-1"`, `"ci-egress-2"`},
		{`proxy = {`, "user_data = \"#cloud-config\"\n  proxy = {"},
	} {
		changed := strings.Replace(base, change[0], change[1], 1)
		if changed == base {
			t.Fatalf("the configuration has no %s to change", change[0])
		}
		steps = append(steps, resource.TestStep{Config: changed, ConfigPlanChecks: resource.ConfigPlanChecks{
			PreApply:             []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionReplace)},
			PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
		}})
	}
	run(t, backend, steps...)
}

func TestTerraformPlansOnAHostThatIsNotKnownYet(t *testing.T) {
	t.Parallel()
	made := strings.Replace(instance(kvmArgument, proxyArgument), `uri = "qemu:///system"`, `uri = "qemu+ssh://root@${terraform_data.hv.output}/system"`, 1) +
		`resource "terraform_data" "hv" { input = "hv1.example.com" }` + "\n"
	named := strings.Replace(instance(kvmArgument, proxyArgument), `host = "hv1"`, `host = terraform_data.hv.output`, 1) +
		`resource "terraform_data" "hv" { input = "hv1" }` + "\n"
	t.Run("its URI", func(t *testing.T) {
		run(t, newFakeBackend(), resource.TestStep{Config: made, ConfigPlanChecks: resource.ConfigPlanChecks{
			PreApply: []plancheck.PlanCheck{
				plancheck.ExpectResourceAction(address, plancheck.ResourceActionCreate),
				plancheck.ExpectKnownValue(address, tfjsonpath.New("id"), knownvalue.StringExact(ciID.String())),
			},
			PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
		}})
	})
	t.Run("its name", func(t *testing.T) {
		run(t, newFakeBackend(), resource.TestStep{Config: named, ConfigPlanChecks: resource.ConfigPlanChecks{
			PreApply:             []plancheck.PlanCheck{plancheck.ExpectUnknownValue(address, tfjsonpath.New("id"))},
			PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
		}})
	})
}

func TestTerraformReplacesForUserDataThatIsNotKnownYet(t *testing.T) {
	t.Parallel()
	withData := func(input string) string {
		return instance(kvmArgument, `user_data = "#cloud-config ${terraform_data.x.output}"`) +
			`resource "terraform_data" "x" { input = "` + input + `" }` + "\n"
	}
	run(t, newFakeBackend(),
		resource.TestStep{Config: withData("one"), ConfigPlanChecks: expectEmptyAfter()},
		resource.TestStep{Config: withData("two"), ConfigPlanChecks: resource.ConfigPlanChecks{
			PreApply: []plancheck.PlanCheck{
				plancheck.ExpectResourceAction(address, plancheck.ResourceActionReplace),
				plancheck.ExpectUnknownValue(address, tfjsonpath.New("config_hash")),
			},
			PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
		}},
	)
}

func TestTerraformAsksNobodyToPlanWithoutRefresh(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	before := 0
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: factories(backend),
		AdditionalCLIOptions:     &resource.AdditionalCLIOptions{Plan: resource.PlanOptions{NoRefresh: true}},
		Steps: []resource.TestStep{
			{ConfigVariables: variables(), Config: instance(kvmArgument, proxyArgument), PlanOnly: true, ExpectNonEmptyPlan: true},
			{
				PreConfig: func() {
					if len(backend.calls) != 0 {
						t.Errorf("validating and planning a creation asked the backend: %v", backend.calls)
					}
				},
				ConfigVariables: variables(), Config: instance(kvmArgument, proxyArgument),
			},
			{
				PreConfig:       func() { before = len(backend.calls) },
				ConfigVariables: variables(), Config: instance(kvmArgument, proxyArgument, `tags = { env = "prod" }`),
				PlanOnly: true, ExpectNonEmptyPlan: true,
			},
			{
				PreConfig: func() {
					if asked := backend.calls[before:]; len(asked) != 0 {
						t.Errorf("a plan without refresh asked the backend: %v", asked)
					}
				},
				ConfigVariables: variables(), Config: instance(kvmArgument, proxyArgument),
			},
		},
	})
}

func TestTerraformWarnsWhenTheProxyDoesNotAnswerAndPlansNothing(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	var silent atomic.Bool
	probe := WithProbe(func(_ context.Context, at netip.AddrPort) error {
		if silent.Load() {
			return fmt.Errorf("connecting to %s: connection refused", at)
		}
		return nil
	})
	runWith(t, factories(backend, probe),
		resource.TestStep{Config: instance(kvmArgument, proxyArgument)},
		resource.TestStep{
			PreConfig:         func() { silent.Store(true) },
			Config:            instance(kvmArgument, proxyArgument),
			ConfigPlanChecks:  expectAction(plancheck.ResourceActionNoop),
			ConfigStateChecks: []statecheck.StateCheck{statecheck.ExpectKnownValue(address, tfjsonpath.New("ready"), knownvalue.Bool(false))},
		},
	)
}

func TestTerraformKeepsTheAddressClientsWereGiven(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	var asked atomic.Value
	probe := WithProbe(func(_ context.Context, at netip.AddrPort) error { asked.Store(at.String()); return nil })
	configuration := instance(kvmArgument, proxyArgument) + `output "url" { value = egressproxy_instance.ci.http_url }` + "\n"
	found := func(addresses ...string) func() {
		return func() {
			backend.change(ciID, func(i *egress.Instance) {
				i.Addresses = nil
				for _, a := range addresses {
					i.Addresses = append(i.Addresses, netip.MustParseAddr(a))
				}
			})
		}
	}
	steps := []resource.TestStep{{Config: configuration}}
	for _, c := range []struct {
		reported []string
		want     []string
	}{
		{nil, []string{"192.0.2.11"}},
		{[]string{"192.0.2.1", "192.0.2.11", "2001:db8::1"}, []string{"192.0.2.11", "192.0.2.1", "2001:db8::1"}},
		{nil, []string{"192.0.2.11", "192.0.2.1", "2001:db8::1"}},
		{[]string{"192.0.2.1", "192.0.2.7"}, []string{"192.0.2.1", "192.0.2.7"}},
	} {
		var want []knownvalue.Check
		for _, a := range c.want {
			want = append(want, knownvalue.StringExact(a))
		}
		steps = append(steps,
			resource.TestStep{PreConfig: found(c.reported...), RefreshState: true},
			resource.TestStep{
				Config:           configuration,
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionNoop)}},
				ConfigStateChecks: []statecheck.StateCheck{
					statecheck.ExpectKnownValue(address, tfjsonpath.New("addresses"), knownvalue.ListExact(want)),
					statecheck.ExpectKnownValue(address, tfjsonpath.New("ready"), knownvalue.Bool(true)),
					stateText("address", c.want[0]),
					stateText("http_url", "http://"+c.want[0]+":3128"),
					stateCheck(func(*tfjson.State) error {
						if at := c.want[0] + ":3128"; asked.Load() != at {
							return fmt.Errorf("the proxy was asked at %v, want %s", asked.Load(), at)
						}
						return nil
					}),
				},
			})
	}
	runWith(t, factories(backend, probe), steps...)
}

func TestTerraformUndoesTagsThatSomeoneElseChanged(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	configuration := instance(kvmArgument, proxyArgument, `tags = { env = "prod" }`)
	run(t, backend,
		resource.TestStep{Config: configuration},
		resource.TestStep{
			PreConfig: func() {
				backend.change(ciID, func(i *egress.Instance) { i.Tags = egress.Tags{"env": "prod", "team": "other", "extra": "1"} })
			},
			Config: configuration,
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply:             []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate)},
				PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
			},
		},
	)
	if got := backend.lastSpec().Tags; len(got) != 2 || got["team"] != "platform" {
		t.Errorf("the update stored the tags %v", got)
	}
}

func TestTerraformShowsNoSecretAnywhere(t *testing.T) {
	log := filepath.Join(t.TempDir(), "trace.log")
	t.Setenv("TF_ACC_LOG", "TRACE")
	t.Setenv("TF_ACC_LOG_PATH", log)
	secretFree := func(where, text string) error {
		for _, secret := range []string{secretText, secretUserData} {
			if strings.Contains(text, secret) {
				return fmt.Errorf("%s shows %q", where, secret)
			}
		}
		return nil
	}
	backend := newFakeBackend()
	run(t, backend, resource.TestStep{
		Config: instance(kvmArgument, proxyArgument, `user_data_wo = var.user_data`, `user_data_wo_version = 1`),
		ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{planCheck(func(plan *tfjson.Plan) error {
			// Variables and configuration are the user's own text.
			return secretFree("the plan", asJSON([]any{plan.ResourceChanges, plan.PlannedValues, plan.PriorState}))
		})}},
		ConfigStateChecks: []statecheck.StateCheck{stateCheck(func(state *tfjson.State) error { return secretFree("the state", asJSON(state)) })},
		Check:             func(state *terraform.State) error { return secretFree("the state", state.String()) },
	})
	if got := backend.specs[0]; got.UserData.Reveal() != secretUserData || got.Proxy.Clients["ci"].Password.Reveal() != secretText {
		t.Errorf("the backend was not given the secrets")
	}
	trace, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(trace), "operation on instance ended") {
		t.Errorf("the trace does not hold the provider's lines, so it proves nothing")
	}
	if err := secretFree("the trace", string(trace)); err != nil {
		t.Error(err)
	}
}

func TestTerraformPlansTheExamplesAsTheyStand(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "examples", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	// The test framework says itself where the provider comes from.
	required := regexp.MustCompile(`(?s)^terraform \{.*?\n\}\n`)
	block := required.ReplaceAllString(read("provider/provider.tf"), "")
	resource.UnitTest(t, resource.TestCase{ProtoV6ProviderFactories: factories(untouchable{t}), Steps: []resource.TestStep{{
		Config:             block + read("resources/egressproxy_instance/resource.tf"),
		ConfigVariables:    config.Variables{"ci_password": config.StringVariable(secretText)},
		PlanOnly:           true,
		ExpectNonEmptyPlan: true,
	}}})
}
