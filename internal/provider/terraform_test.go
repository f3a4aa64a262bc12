package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/config"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

func TestMain(m *testing.M) {
	// A CLI configuration of the developer's may name overrides or files that
	// do not exist, and changes what terraform prints.
	if err := os.Unsetenv("TF_CLI_CONFIG_FILE"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

const (
	sumA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	sumB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

	address    = "egressproxy_instance.ci"
	secretText = "correct-horse-battery-staple"
)

var ciID = egress.ProviderID{Backend: egress.KVM, Location: "hv1", Name: "ci-egress-1"}

const providerBlock = `
provider "egressproxy" {
  kvm = {
    hosts         = { hv1 = { uri = "qemu:///system" } }
    machine_types = { small = { vcpus = 1, memory_mib = 512, disk_gib = 4 } }
    images        = { debian12 = { source = "/images/debian-12.qcow2", sha256 = "` + sumA + `" } }
  }
  default_tags = { team = "platform" }
}
variable "password" {
  type      = string
  sensitive = true
}
`

const proxyArgument = `proxy = {
    clients = { ci = { password_wo = var.password, password_wo_version = 1, allow_domains = [".github.com"] } }
    policy  = { allow_domains = ["example.org"] }
  }`

const kvmArgument = `kvm = { host = "hv1", machine_type = "small", image = "debian12" }`

// instance gives a configuration of one instance with these arguments.
func instance(arguments ...string) string {
	return providerBlock + `resource "egressproxy_instance" "ci" {
  name = "ci-egress-1"
  ` + strings.Join(arguments, "\n  ") + "\n}\n"
}

func variables() config.Variables {
	return config.Variables{"password": config.StringVariable(secretText)}
}

func factories(backend egress.Backend, options ...Option) map[string]func() (tfprotov6.ProviderServer, error) {
	answers := WithProbe(func(context.Context, netip.AddrPort) error { return nil })
	options = append([]Option{WithBackends(map[egress.Kind]egress.Backend{egress.KVM: backend}), answers}, options...)
	return map[string]func() (tfprotov6.ProviderServer, error){
		"egressproxy": providerserver.NewProtocol6WithError(New("test", options...)()),
	}
}

// run plays steps, all with the same variables, against a backend.
func run(t *testing.T, backend *fakeBackend, steps ...resource.TestStep) {
	t.Helper()
	runWith(t, factories(backend), steps...)
	if n := len(backend.instances); n != 0 {
		t.Errorf("destroy left %d instances behind", n)
	}
}

func runWith(t *testing.T, servers map[string]func() (tfprotov6.ProviderServer, error), steps ...resource.TestStep) {
	t.Helper()
	for i := range steps {
		steps[i].ConfigVariables = variables()
	}
	resource.UnitTest(t, resource.TestCase{ProtoV6ProviderFactories: servers, Steps: steps})
}

func expectAction(action plancheck.ResourceActionType) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, action)}}
}

func expectEmptyAfter() resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}
}

func stateText(name, want string) statecheck.StateCheck {
	at := tfjsonpath.New(strings.Split(name, ".")[0])
	for _, step := range strings.Split(name, ".")[1:] {
		at = at.AtMapKey(step)
	}
	return statecheck.ExpectKnownValue(address, at, knownvalue.StringExact(want))
}

func TestTerraformAppliesThenPlansNothingThenImports(t *testing.T) {
	backend := newFakeBackend()
	run(t, backend,
		resource.TestStep{
			Config: instance(kvmArgument, proxyArgument, `tags = { env = "prod" }`),
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction(address, plancheck.ResourceActionCreate),
					plancheck.ExpectKnownValue(address, tfjsonpath.New("id"), knownvalue.StringExact("kvm://hv1/ci-egress-1")),
					plancheck.ExpectKnownValue(address, tfjsonpath.New("state"), knownvalue.StringExact("running")),
					plancheck.ExpectKnownValue(address, tfjsonpath.New("config_hash"), knownvalue.StringRegexp(regexp.MustCompile(`^[0-9a-f]{64}$`))),
					plancheck.ExpectKnownValue(address, tfjsonpath.New("kvm").AtMapKey("memory_mib"), knownvalue.Int64Exact(512)),
					plancheck.ExpectKnownValue(address, tfjsonpath.New("kvm").AtMapKey("image_sha256"), knownvalue.StringExact(sumA)),
					plancheck.ExpectKnownValue(address, tfjsonpath.New("health_check").AtMapKey("target"), knownvalue.StringExact("example.org:443")),
					plancheck.ExpectUnknownValue(address, tfjsonpath.New("address")),
					plancheck.ExpectUnknownValue(address, tfjsonpath.New("kvm").AtMapKey("uuid")),
				},
				PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
			},
			ConfigStateChecks: []statecheck.StateCheck{
				stateText("http_url", "http://192.0.2.11:3128"),
				stateText("address", "192.0.2.11"),
				stateText("created_at", "2026-12-01T10:00:01Z"),
				stateText("kvm.virt_type", "qemu"),
				statecheck.ExpectKnownValue(address, tfjsonpath.New("ready"), knownvalue.Bool(true)),
				statecheck.ExpectKnownValue(address, tfjsonpath.New("tags_all"), knownvalue.MapExact(map[string]knownvalue.Check{
					"env": knownvalue.StringExact("prod"), "team": knownvalue.StringExact("platform"),
				})),
			},
		},
		resource.TestStep{
			ResourceName: address, ImportState: true, ImportStateId: ciID.String(), ImportStateVerify: true,
		},
	)
	if backend.count("update") != 0 {
		t.Errorf("the instance was updated without a change")
	}
}

func TestTerraformPlansNothingAfterImport(t *testing.T) {
	for name, arguments := range map[string][]string{
		"with a machine type": {kvmArgument, proxyArgument, `tags = { env = "prod" }`},
		"with sizes":          {`kvm = { host = "hv1", vcpus = 1, memory_mib = 512, disk_gib = 4, image = "debian12", network = "default" }`, proxyArgument},
		"with other spellings": {kvmArgument, proxyArgument,
			`health_check = { target = "example.org:443", interval = "60s" }`},
		"with user-data, write-only": {kvmArgument, `user_data_wo = "#cloud-config"`, `user_data_wo_version = 1`},
	} {
		t.Run(name, func(t *testing.T) {
			backend := newFakeBackend()
			once := instance(arguments...)
			again := once + `import {
  to = egressproxy_instance.ci
  id = "kvm://hv1/ci-egress-1"
}
`
			action := plancheck.ResourceActionNoop
			if strings.Contains(once, "user_data_wo") {
				action = plancheck.ResourceActionUpdate // its version cannot be read back
			}
			// The instance is made in one working directory, and forgotten there.
			run(t, backend,
				resource.TestStep{Config: once},
				resource.TestStep{Config: providerBlock + `removed {
  from = egressproxy_instance.ci
  lifecycle { destroy = false }
}
`},
				resource.TestStep{Config: again, ConfigPlanChecks: resource.ConfigPlanChecks{
					PreApply:             []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, action)},
					PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
				}},
			)
			if got := backend.count("create"); got != 1 {
				t.Errorf("the instance was made %d times, want once", got)
			}
		})
	}
}

func TestTerraformRefusesImportIDsByTheirForm(t *testing.T) {
	for id, want := range map[string]string{
		"ci-egress-1":           `expected kvm://HOST/NAME`,
		"kvm://hv1/a/b":         `expected kvm://HOST/NAME`,
		"gcp://p/zone/name":     `has no backend "gcp"`,
		"kvm://hv9/ci-egress-1": `(?s)no host "hv9"; it.*has: hv1`,
	} {
		t.Run(id, func(t *testing.T) {
			run(t, newFakeBackend(), resource.TestStep{
				Config: instance(kvmArgument, proxyArgument), ResourceName: address,
				ImportState: true, ImportStateId: id, ExpectError: regexp.MustCompile(want),
			})
		})
	}
}

func TestTerraformStartsAStoppedInstance(t *testing.T) {
	backend := newFakeBackend()
	onlyState := planCheck(func(plan *tfjson.Plan) error {
		change := plan.ResourceChanges[0].Change
		before, after := change.Before.(map[string]any), change.After.(map[string]any)
		for name, was := range before {
			_, open := change.AfterUnknown.(map[string]any)[name]
			runtime := name == "state" || name == "ready" || name == "addresses" || name == "address" || name == "http_url"
			if same := asJSON(was) == asJSON(after[name]); !runtime && (!same || asJSON(open) == "true" && after[name] == nil && was != nil) {
				return fmt.Errorf("%s changes from %v to %v", name, was, after[name])
			}
		}
		return nil
	})
	run(t, backend,
		resource.TestStep{Config: instance(kvmArgument, proxyArgument)},
		resource.TestStep{
			PreConfig: func() { backend.stop(ciID) },
			Config:    instance(kvmArgument, proxyArgument),
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate),
					plancheck.ExpectKnownValue(address, tfjsonpath.New("state"), knownvalue.StringExact("running")),
					plancheck.ExpectUnknownValue(address, tfjsonpath.New("address")),
					onlyState,
				},
				PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
			},
			ConfigStateChecks: []statecheck.StateCheck{stateText("http_url", "http://192.0.2.99:3128"), stateText("state", "running")},
		},
	)
	if got := backend.lastSpec().Proxy.Clients["ci"].Password.Reveal(); got != secretText {
		t.Errorf("the start cannot prove that the proxy forwards: it was given the password %q", got)
	}
}

func TestTerraformCreatesAVanishedInstance(t *testing.T) {
	backend := newFakeBackend()
	run(t, backend,
		resource.TestStep{Config: instance(kvmArgument, proxyArgument)},
		resource.TestStep{
			PreConfig:        func() { backend.vanish(ciID) },
			Config:           instance(kvmArgument, proxyArgument),
			ConfigPlanChecks: expectAction(plancheck.ResourceActionCreate),
		},
	)
}

func TestTerraformKeepsTheStateWhenTheHostCannotBeAsked(t *testing.T) {
	backend := newFakeBackend()
	unreachable := &egress.Fault{Kind: egress.ErrUnreachable, Doing: "reading domain ci-egress-1", Host: "hv1", Cause: errors.New("connection reset by peer")}
	run(t, backend,
		resource.TestStep{Config: instance(kvmArgument, proxyArgument)},
		resource.TestStep{
			PreConfig:    func() { backend.fail("get", unreachable) },
			RefreshState: true,
			ExpectError:  regexp.MustCompile(`(?s)Unable to read egress proxy "ci-egress-1".*While reading domain ci-egress-1\s+on\s+host\s+hv1.*connection\s+reset\s+by\s+peer`),
		},
		resource.TestStep{
			PreConfig:        func() { backend.fail("get", nil) },
			Config:           instance(kvmArgument, proxyArgument),
			ConfigPlanChecks: expectAction(plancheck.ResourceActionNoop),
		},
	)
}

func TestTerraformTaintsAHalfMadeInstanceAndReplacesIt(t *testing.T) {
	backend := newFakeBackend()
	backend.halfway = true
	died := &egress.Fault{
		Kind: egress.ErrPermanent, Doing: "waiting for instance ci-egress-1", Host: "hv1", Cause: errors.New("the guest crashed"),
		Console: []string{"Kernel panic - not syncing"}, Remedy: "Use another image.", Attribute: "kvm.image",
	}
	backend.fail("create", died)
	tainted := planCheck(func(plan *tfjson.Plan) error {
		r := plan.PriorState.Values.RootModule.Resources[0]
		text := asJSON(r.AttributeValues)
		for _, want := range []string{`"id":"kvm://hv1/ci-egress-1"`, `"uuid":"00000000-`, `"state":"provisioning"`, `"ready":false`, `"host":"hv1"`, `"created_at":"2026-`, `"env":"prod"`, `"password_wo_version":1`} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("the saved state lacks %s: %s", want, text)
			}
		}
		if !r.Tainted {
			return errors.New("the half-made instance is not tainted")
		}
		return nil
	})
	run(t, backend,
		resource.TestStep{
			Config:      instance(kvmArgument, proxyArgument, `tags = { env = "prod" }`),
			ExpectError: regexp.MustCompile(`(?s)Unable to create egress proxy "ci-egress-1".*hv1: the guest crashed.*Kernel panic - not syncing.*Use another image`),
		},
		resource.TestStep{
			PreConfig: func() { backend.fail("create", nil) },
			Config:    instance(kvmArgument, proxyArgument, `tags = { env = "prod" }`),
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply:             []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionReplace), tainted},
				PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
			},
		},
	)
}

func TestTerraformChangesInPlaceWhatNeedsNoNewMachine(t *testing.T) {
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

func TestTerraformUndoesTagsThatSomeoneElseChanged(t *testing.T) {
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
	const userData = "#cloud-config secret-user-data"
	log := filepath.Join(t.TempDir(), "trace.log")
	t.Setenv("TF_ACC_LOG", "TRACE")
	t.Setenv("TF_ACC_LOG_PATH", log)
	secretFree := func(where, text string) error {
		for _, secret := range []string{secretText, "secret-user-data"} {
			if strings.Contains(text, secret) {
				return fmt.Errorf("%s shows %q", where, secret)
			}
		}
		return nil
	}
	backend := newFakeBackend()
	run(t, backend, resource.TestStep{
		Config: instance(kvmArgument, proxyArgument, `user_data_wo = "`+userData+`"`, `user_data_wo_version = 1`),
		ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{planCheck(func(plan *tfjson.Plan) error {
			// Variables and configuration are the user's own text.
			return secretFree("the plan", asJSON([]any{plan.ResourceChanges, plan.PlannedValues, plan.PriorState}))
		})}},
		ConfigStateChecks: []statecheck.StateCheck{stateCheck(func(state *tfjson.State) error { return secretFree("the state", asJSON(state)) })},
		Check:             func(state *terraform.State) error { return secretFree("the state", state.String()) },
	})
	if got := backend.specs[0]; got.UserData.Reveal() != userData || got.Proxy.Clients["ci"].Password.Reveal() != secretText {
		t.Errorf("the backend was not given the secrets")
	}
	trace, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(trace), "operation on instance ended") {
		t.Errorf("the trace does not hold the provider's lines, so it proves nothing")
	}
	// The configuration itself is in terraform's own trace, as its author
	// wrote it: user-data as a literal, the password by its variable's name.
	if strings.Contains(string(trace), secretText) {
		t.Errorf("the trace shows the password")
	}
}

// planCheck makes a check of a plan's JSON form.
type planCheck func(*tfjson.Plan) error

func (c planCheck) CheckPlan(_ context.Context, req plancheck.CheckPlanRequest, resp *plancheck.CheckPlanResponse) {
	resp.Error = c(req.Plan)
}

// stateCheck makes a check of a state's JSON form.
type stateCheck func(*tfjson.State) error

func (c stateCheck) CheckState(_ context.Context, req statecheck.CheckStateRequest, resp *statecheck.CheckStateResponse) {
	resp.Error = c(req.State)
}

// noUnknowns refuses a plan that shows anything as known after apply.
var noUnknowns = planCheck(func(plan *tfjson.Plan) error {
	for _, change := range plan.ResourceChanges {
		if open := asJSON(change.Change.AfterUnknown); strings.Contains(open, "true") {
			return fmt.Errorf("%s is planned as known after apply in %s", change.Address, open)
		}
	}
	return nil
})

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
