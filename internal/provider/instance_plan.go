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
		return
	}
	p.plan.ID = p.prior.ID
	p.replaceWhere(path.Root("name"), p.plan.Name, p.prior.Name)
	p.replaceWhere(configHashPath, p.plan.ConfigHash, p.prior.ConfigHash)
	p.explainOpenReplacement()
}

// decideMachine resolves what the machine's attributes refer to in the
// provider block.
func (p *planning) decideMachine(ctx context.Context) {
	if p.plan.KVM.IsUnknown() {
		if p.prior != nil {
			p.replaceWhere(kvmPath, p.plan.KVM, p.prior.KVM)
		}
		return
	}
	config := as[kvmModel](ctx, p.config.KVM, &p.diags)
	m := as[kvmModel](ctx, p.plan.KVM, &p.diags)
	prior := kvmModel{
		MachineType: types.StringNull(), VirtType: types.StringUnknown(),
		UUID: types.StringUnknown(), MAC: types.StringUnknown(),
	}
	if p.prior != nil {
		prior = as[kvmModel](ctx, p.prior.KVM, &p.diags)
	}

	p.checkHost(m.Host)
	p.decideSizes(&m, config, prior)
	m.ImageSHA256 = p.imageSHA256(m.Image)
	m.VirtType = configuredOr(config.VirtType, prior.VirtType)
	m.UUID, m.MAC = prior.UUID, prior.MAC
	p.plan.KVM = object(ctx, m, kvmTypes, &p.diags)
	if p.prior == nil {
		return
	}

	p.replaceWhere(kvmPath.AtName("host"), m.Host, prior.Host)
	p.replaceWhere(kvmPath.AtName("vcpus"), m.VCPUs, prior.VCPUs)
	p.replaceWhere(kvmPath.AtName("memory_mib"), m.MemoryMiB, prior.MemoryMiB)
	p.replaceWhere(kvmPath.AtName("disk_gib"), m.DiskGiB, prior.DiskGiB)
	p.replaceWhere(kvmPath.AtName("image_sha256"), m.ImageSHA256, prior.ImageSHA256)
	p.replaceWhere(kvmPath.AtName("pool"), m.Pool, prior.Pool)
	p.replaceWhere(kvmPath.AtName("virt_type"), m.VirtType, prior.VirtType)
	if prior.Network.IsNull() && !m.Network.IsNull() {
		// A machine that is on no network was taken off it.
		p.replace.Append(kvmPath.AtName("network"))
	}
	p.replaceWhere(kvmPath.AtName("network"), m.Network, prior.Network)
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

func (p *planning) checkHost(host types.String) {
	if host.IsUnknown() {
		return
	}
	if _, presence := p.settings.hosts.find(host.ValueString()); presence == absent {
		p.refuse(kvmPath.AtName("host"), "Unknown host", host.ValueString(), "kvm.hosts", p.settings.hosts.names())
	}
}

// refuse reports a reference to something that the provider block lacks.
func (p *planning) refuse(at path.Path, summary, value, table, names string) {
	p.diags.AddAttributeError(at, fmt.Sprintf("%s %q", summary, value),
		fmt.Sprintf("%s = %q, but %s in the provider block has no such entry; it has: %s. Add it there, or use one of these.", at, value, table, names))
}

// decideSizes takes each size from its own attribute, else from the machine
// type.
func (p *planning) decideSizes(m *kvmModel, config, prior kvmModel) {
	var size machineType
	found := absent
	switch name := config.MachineType; {
	case name.IsUnknown():
		found = pending
	case !name.IsNull():
		if size, found = p.settings.machineTypes.find(name.ValueString()); found == absent {
			p.refuse(kvmPath.AtName("machine_type"), "Unknown machine type", name.ValueString(), "kvm.machine_types", p.settings.machineTypes.names())
		}
	}
	m.VCPUs = sizeOr(config.VCPUs, size.VCPUs, found)
	m.MemoryMiB = sizeOr(config.MemoryMiB, size.MemoryMiB, found)
	m.DiskGiB = sizeOr(config.DiskGiB, size.DiskGiB, found)
	m.MachineType = config.MachineType
	if config.MachineType.IsNull() {
		// Import found the type that the sizes are those of; it holds for as
		// long as that is so.
		if size, presence := p.settings.machineTypes.find(prior.MachineType.ValueString()); presence == pending || (presence == present && size == sizes(*m)) {
			m.MachineType = prior.MachineType
		}
	}
}

func sizeOr(configured types.Int64, size int64, found presence) types.Int64 {
	switch {
	case !configured.IsNull():
		return configured
	case found == absent: // refused already
		return types.Int64Null()
	case found == pending && size == 0:
		return types.Int64Unknown()
	}
	return types.Int64Value(size)
}

func (p *planning) imageSHA256(name types.String) types.String {
	if name.IsUnknown() {
		return types.StringUnknown()
	}
	image, presence := p.settings.images.find(name.ValueString())
	if presence == absent {
		p.refuse(kvmPath.AtName("image"), "Unknown image", name.ValueString(), "kvm.images", p.settings.images.names())
	}
	if image.SHA256 == "" {
		return types.StringUnknown()
	}
	return types.StringValue(image.SHA256)
}

// configHash identifies the planned configuration, or is unknown while a part
// of it is.
func (p *planning) configHash(ctx context.Context) types.String {
	if !isFullyKnown(ctx, p.plan.Proxy) || p.plan.UserData.IsUnknown() || p.plan.UserDataWOVersion.IsUnknown() {
		return types.StringUnknown()
	}
	return types.StringValue(egress.Spec{
		Proxy:           readProxy(ctx, p.plan.Proxy, &p.diags),
		UserData:        egress.NewSecret(p.plan.UserData.ValueString()),
		UserDataVersion: p.plan.UserDataWOVersion.ValueInt64(),
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

// decideRuntime plans what the machine does: it is to run. A machine that was
// found stopped is started, and only then are its addresses to be found anew.
func (p *planning) decideRuntime() {
	plan, prior := &p.plan, p.prior
	if prior != nil {
		plan.State, plan.Ready, plan.CreatedAt = prior.State, prior.Ready, prior.CreatedAt
		plan.Addresses, plan.Address, plan.HTTPURL = prior.Addresses, prior.Address, prior.HTTPURL
		if prior.State.ValueString() != string(egress.Stopped) {
			return
		}
	} else {
		plan.CreatedAt = types.StringUnknown()
	}
	plan.State = types.StringValue(string(egress.Running))
	plan.Ready = types.BoolUnknown()
	plan.Addresses = types.ListUnknown(types.StringType)
	plan.Address = types.StringUnknown()
	plan.HTTPURL = types.StringUnknown()
	if plan.Proxy.IsNull() {
		plan.HTTPURL = types.StringNull()
	}
}

func (p *planning) newID(ctx context.Context) types.String {
	host := as[kvmModel](ctx, p.plan.KVM, &p.diags).Host
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
