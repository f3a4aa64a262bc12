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

func TestTerraformAppliesThenPlansNothingThenImports(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	for name, arguments := range map[string][]string{
		"with a machine type": {kvmArgument, proxyArgument, `tags = { env = "prod" }`},
		"with sizes":          {`kvm = { host = "hv1", vcpus = 1, memory_mib = 512, disk_gib = 4, image = "debian12", network = "default" }`, proxyArgument},
		"with other spellings": {kvmArgument, proxyArgument,
			`health_check = { target = "example.org:443", interval = "60s" }`},
		"with user-data, write-only":             {kvmArgument, `user_data_wo = "#cloud-config"`, `user_data_wo_version = 1`},
		"with a proxy and user-data, write-only": {kvmArgument, proxyArgument, `user_data_wo = "#cloud-config"`, `user_data_wo_version = 7`},
	} {
		t.Run(name, func(t *testing.T) {
			backend := newFakeBackend()
			once := instance(arguments...)
			again := once + `import {
  to = egressproxy_instance.ci
  id = "kvm://hv1/ci-egress-1"
}
`
			// The instance is made in one working directory, and forgotten there.
			run(t, backend,
				resource.TestStep{Config: once},
				resource.TestStep{Config: providerBlock + `removed {
  from = egressproxy_instance.ci
  lifecycle { destroy = false }
}
`},
				resource.TestStep{Config: again, ConfigPlanChecks: resource.ConfigPlanChecks{
					PreApply:             []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionNoop)},
					PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
				}},
			)
			if made, changed := backend.count("create"), backend.count("update"); made != 1 || changed != 0 {
				t.Errorf("the instance was made %d times and changed %d times, want once and never", made, changed)
			}
		})
	}
}

func TestTerraformRefusesImportIDsByTheirForm(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
