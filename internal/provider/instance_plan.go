package provider

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

var (
	kvmPath         = path.Root("kvm")
	proxyPath       = path.Root("proxy")
	healthCheckPath = path.Root("health_check")
	configHashPath  = path.Root("config_hash")
)

// planning decides what a plan says. It asks nobody: all it knows is the
// configuration, the provider block and the state.
type planning struct {
	config   instanceModel
	prior    *instanceModel // nil when the instance is to be created
	settings *settings

	// plan starts as what Terraform proposes: the configuration with the
	// schema's defaults.
	plan instanceModel
	// replace are the attributes whose change needs another machine.
	replace path.Paths
	// open are those of replace whose planned value is not known yet.
	open  []string
	diags diag.Diagnostics
}

// decide fills in every computed value that can be known: on creation what
// follows from the configuration, on a change what the state already has, so
// that nothing is shown as "known after apply" without need.
func (p *planning) decide(ctx context.Context) {
	p.decideMachine(ctx)
	p.plan.TagsAll = allTags(p.plan.Tags, p.settings.defaultTags)
	p.plan.ConfigHash = p.configHash(ctx)
	p.decideHealthCheck(ctx)
	p.decideRuntime()
	if p.prior == nil {
		p.plan.ID = p.newID(ctx)
		p.checkComplete(ctx)
		return
	}
	p.plan.ID = p.prior.ID
	p.replaceWhere(path.Root("name"), p.plan.Name, p.prior.Name)
	p.replaceWhere(configHashPath, p.plan.ConfigHash, p.prior.ConfigHash)
	p.explainOpenReplacement()
	p.explainAdoption()
	if len(p.replace) > 0 {
		p.checkComplete(ctx)
		p.refuseReplacement()
	}
}

// replaceWhere asks for a replacement where an attribute changes, or may
// change, from what the machine is known to have. What is not known of the
// machine differs from nothing.
func (p *planning) replaceWhere(at path.Path, planned, prior attr.Value) {
	if prior.IsNull() || planned.Equal(prior) {
		return
	}
	p.replace.Append(at)
	if planned.IsUnknown() {
		p.open = append(p.open, at.String())
	}
}

// explainOpenReplacement says why a replacement is planned that may turn out
// to be needless. Terraform refuses to turn a planned change in place into a
// replacement at apply, so what may need one is planned as one.
func (p *planning) explainOpenReplacement() {
	if len(p.open) == 0 {
		return
	}
	p.diags.AddWarning(fmt.Sprintf("Replacement of egress proxy %s planned on values that are not known yet", p.prior.Name),
		fmt.Sprintf("Whether %s really changes is known only during the apply, when a change in place can no longer become a replacement. "+
			"So a replacement is planned. To find out first, apply what the value depends on with -target.", strings.Join(p.open, ", ")))
}

// configHash identifies the planned configuration, or is unknown while a part
// of it is.
func (p *planning) configHash(ctx context.Context) types.String {
	if !isFullyKnown(ctx, p.plan.Proxy) || p.plan.UserData.IsUnknown() || p.plan.UserDataWOVersion.IsUnknown() {
		return types.StringUnknown()
	}
	vendorData := machineOf(ctx, p.plan.KVM, &p.diags).VendorData
	if p.plan.KVM.IsUnknown() || vendorData.IsUnknown() {
		return types.StringUnknown()
	}
	return textOrNull(egress.Spec{
		Proxy:           readProxy(ctx, p.plan.Proxy, &p.diags),
		UserData:        egress.NewSecret(p.plan.UserData.ValueString()),
		UserDataVersion: p.plan.UserDataWOVersion.ValueInt64(),
		KVM:             &egress.KVMSpec{VendorData: vendorData.ValueString()},
	}.ConfigHash())
}

// decideHealthCheck fills in what the configuration leaves out.
func (p *planning) decideHealthCheck(ctx context.Context) {
	if p.config.HealthCheck.IsUnknown() {
		return
	}
	config := as[healthCheckModel](ctx, p.config.HealthCheck, &p.diags)
	m := config
	switch {
	case !config.From.IsNull():
	case p.plan.Proxy.IsUnknown():
		m.From = types.StringUnknown()
	case p.plan.Proxy.IsNull():
		m.From = types.StringValue(string(egress.FromNone))
	default:
		m.From = types.StringValue(string(egress.FromClient))
	}
	switch {
	case !config.Target.IsNull():
	case m.From.ValueString() == string(egress.FromNone):
		m.Target = types.StringNull()
	case m.From.IsUnknown() || !isFullyKnown(ctx, p.plan.Proxy):
		m.Target = types.StringUnknown()
	default:
		if wanted := readProxy(ctx, p.plan.Proxy, &p.diags); wanted != nil {
			target, _ := proxy.DefaultTarget(*wanted) // its absence was refused by validation
			m.Target = textOrNull(target)
		}
	}
	if config.Interval.IsNull() {
		m.Interval = types.StringValue("1s")
	}
	if p.prior != nil {
		m.Interval = sameDuration(m.Interval, as[healthCheckModel](ctx, p.prior.HealthCheck, &p.diags).Interval)
	}
	p.plan.HealthCheck = object(ctx, m, healthCheckTypes, &p.diags)
}

// sameDuration gives prior when it is the planned duration, written
// differently.
func sameDuration(planned, prior types.String) types.String {
	a, errA := time.ParseDuration(planned.ValueString())
	b, errB := time.ParseDuration(prior.ValueString())
	if errA == nil && errB == nil && a == b {
		return prior
	}
	return planned
}

// decideRuntime plans what the machine does. Where it does that already, all
// that comes and goes with a running machine stays; one that is started has its
// addresses found anew, one that is stopped has none.
func (p *planning) decideRuntime() {
	plan, prior := &p.plan, p.prior
	wanted := egress.Running
	if !plan.Running.ValueBool() {
		wanted = egress.Stopped
	}
	if prior != nil {
		plan.State, plan.Ready, plan.CreatedAt = prior.State, prior.Ready, prior.CreatedAt
		plan.Addresses, plan.Address, plan.HTTPURL = prior.Addresses, prior.Address, prior.HTTPURL
		stopped := prior.State.ValueString() == string(egress.Stopped)
		if !plan.Running.IsUnknown() && stopped == (wanted == egress.Stopped) {
			return
		}
	} else {
		plan.CreatedAt = types.StringUnknown()
	}
	plan.State = types.StringValue(string(wanted))
	switch {
	case plan.Running.IsUnknown():
		plan.State = types.StringUnknown()
	case wanted == egress.Stopped:
		plan.Ready = types.BoolValue(false)
		plan.Addresses = textsList(nil)
		plan.Address, plan.HTTPURL = types.StringNull(), types.StringNull()
		return
	}
	plan.Ready = types.BoolUnknown()
	plan.Addresses = types.ListUnknown(types.StringType)
	plan.Address = types.StringUnknown()
	plan.HTTPURL = types.StringUnknown()
	if plan.Proxy.IsNull() {
		plan.HTTPURL = types.StringNull()
	}
}

func (p *planning) newID(ctx context.Context) types.String {
	host := machineOf(ctx, p.plan.KVM, &p.diags).Host
	if p.plan.KVM.IsUnknown() || host.IsUnknown() || p.plan.Name.IsUnknown() {
		return types.StringUnknown()
	}
	return types.StringValue(egress.ProviderID{Backend: egress.KVM, Location: host.ValueString(), Name: p.plan.Name.ValueString()}.String())
}

// allTags overlays the provider block's tags with the instance's own. Single
// values may be unknown; the keys must be known.
func allTags(tags, defaults types.Map) types.Map {
	if tags.IsUnknown() || defaults.IsUnknown() {
		return types.MapUnknown(types.StringType)
	}
	all := make(map[string]attr.Value, len(tags.Elements())+len(defaults.Elements()))
	maps.Copy(all, defaults.Elements())
	maps.Copy(all, tags.Elements())
	return types.MapValueMust(types.StringType, all)
}

// configuredOr gives the configured value, known or not, or else the other.
func configuredOr(configured, other types.String) types.String {
	if configured.IsNull() {
		return other
	}
	return configured
}
