package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/config"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
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

	secretUserData = "#cloud-config secret-user-data"
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
variable "user_data" {
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
	return config.Variables{"password": config.StringVariable(secretText), "user_data": config.StringVariable(secretUserData)}
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
