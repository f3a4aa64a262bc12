package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

type instanceModel struct {
	Name              types.String   `tfsdk:"name"`
	Description       types.String   `tfsdk:"description"`
	Running           types.Bool     `tfsdk:"running"`
	Protected         types.Bool     `tfsdk:"deletion_protection"`
	KVM               types.Object   `tfsdk:"kvm"`
	Proxy             types.Object   `tfsdk:"proxy"`
	UserData          types.String   `tfsdk:"user_data"`
	UserDataWO        types.String   `tfsdk:"user_data_wo"`
	UserDataWOVersion types.Int64    `tfsdk:"user_data_wo_version"`
	HealthCheck       types.Object   `tfsdk:"health_check"`
	Tags              types.Map      `tfsdk:"tags"`
	Timeouts          timeouts.Value `tfsdk:"timeouts"`
	ID                types.String   `tfsdk:"id"`
	State             types.String   `tfsdk:"state"`
	Ready             types.Bool     `tfsdk:"ready"`
	Addresses         types.List     `tfsdk:"addresses"`
	Address           types.String   `tfsdk:"address"`
	HTTPURL           types.String   `tfsdk:"http_url"`
	ConfigHash        types.String   `tfsdk:"config_hash"`
	CreatedAt         types.String   `tfsdk:"created_at"`
	TagsAll           types.Map      `tfsdk:"tags_all"`
}

type kvmModel struct {
	Host        types.String `tfsdk:"host"`
	MachineType types.String `tfsdk:"machine_type"`
	VCPUs       types.Int64  `tfsdk:"vcpus"`
	MemoryMiB   types.Int64  `tfsdk:"memory_mib"`
	DiskGiB     types.Int64  `tfsdk:"disk_gib"`
	Image       types.String `tfsdk:"image"`
	Network     types.String `tfsdk:"network"`
	Interfaces  types.List   `tfsdk:"interfaces"`
	Pool        types.String `tfsdk:"pool"`
	VirtType    types.String `tfsdk:"virt_type"`
	CPUMode     types.String `tfsdk:"cpu_mode"`
	Firmware    types.String `tfsdk:"firmware"`
	SecureBoot  types.Bool   `tfsdk:"secure_boot"`
	Autostart   types.Bool   `tfsdk:"autostart"`
	ConsoleLog  types.String `tfsdk:"console_log"`
	VendorData  types.String `tfsdk:"vendor_data"`
	UUID        types.String `tfsdk:"uuid"`
	MAC         types.String `tfsdk:"mac"`
	ImageSHA256 types.String `tfsdk:"image_sha256"`
	ImageVolume types.String `tfsdk:"image_volume"`
	Missing     types.List   `tfsdk:"missing_volumes"`
}

type proxyModel struct {
	HTTPPort types.Int64  `tfsdk:"http_port"`
	Clients  types.Map    `tfsdk:"clients"`
	Policy   types.Object `tfsdk:"policy"`
}

type clientModel struct {
	PasswordWO        types.String `tfsdk:"password_wo"`
	PasswordWOVersion types.Int64  `tfsdk:"password_wo_version"`
	AllowDomains      types.Set    `tfsdk:"allow_domains"`
}

type policyModel struct {
	Default      types.String `tfsdk:"default"`
	AllowDomains types.Set    `tfsdk:"allow_domains"`
	AllowPorts   types.Set    `tfsdk:"allow_ports"`
}

type healthCheckModel struct {
	Target   types.String `tfsdk:"target"`
	From     types.String `tfsdk:"from"`
	Interval types.String `tfsdk:"interval"`
}

// isFullyKnown tells whether v holds no unknown value at any depth.
func isFullyKnown(ctx context.Context, v attr.Value) bool {
	value, err := v.ToTerraformValue(ctx)
	return err == nil && value.IsFullyKnown()
}

// as takes a known object apart into its model. A null or unknown one gives
// the zero model, whose values are all null.
func as[M any](ctx context.Context, object types.Object, diags *diag.Diagnostics) M {
	var model M
	if !object.IsNull() && !object.IsUnknown() {
		diags.Append(object.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	}
	return model
}

// machineOf takes a kvm attribute apart; a null or unknown one gives a model
// whose values are all null.
func machineOf(ctx context.Context, o types.Object, diags *diag.Diagnostics) kvmModel {
	if o.IsNull() || o.IsUnknown() {
		return kvmModel{Interfaces: noInterfaces(), Missing: types.ListNull(types.StringType)}
	}
	return as[kvmModel](ctx, o, diags)
}

// object puts a model together again.
func object(ctx context.Context, model any, attributes map[string]attr.Type, diags *diag.Diagnostics) types.Object {
	out, d := types.ObjectValueFrom(ctx, attributes, model)
	diags.Append(d...)
	return out
}

func defaultPolicy() egress.Policy {
	return egress.Policy{Default: egress.Deny, AllowPorts: []int{80, 443}}
}

// readProxy translates a fully known proxy attribute, with or without the
// defaults filled in; null gives nil. Passwords are there only when the object
// is the configuration's.
func readProxy(ctx context.Context, o types.Object, diags *diag.Diagnostics) *egress.Proxy {
	if o.IsNull() {
		return nil
	}
	model := as[proxyModel](ctx, o, diags)
	clients := make(map[string]clientModel, len(model.Clients.Elements()))
	if !model.Clients.IsNull() {
		diags.Append(model.Clients.ElementsAs(ctx, &clients, false)...)
	}
	proxy := &egress.Proxy{
		HTTPPort: defaultHTTPPort,
		Clients:  make(map[string]egress.Client, len(clients)),
		Policy:   readPolicy(ctx, model.Policy, diags),
	}
	if !model.HTTPPort.IsNull() {
		proxy.HTTPPort = int(model.HTTPPort.ValueInt64())
	}
	for name, client := range clients {
		proxy.Clients[name] = egress.Client{
			Password:        egress.NewSecret(client.PasswordWO.ValueString()),
			PasswordVersion: client.PasswordWOVersion.ValueInt64(),
			AllowDomains:    elements[string](ctx, client.AllowDomains, diags),
		}
	}
	return proxy
}

func readPolicy(ctx context.Context, o types.Object, diags *diag.Diagnostics) egress.Policy {
	policy := defaultPolicy()
	model := as[policyModel](ctx, o, diags)
	if !model.Default.IsNull() {
		policy.Default = egress.Verdict(model.Default.ValueString())
	}
	policy.AllowDomains = elements[string](ctx, model.AllowDomains, diags)
	if !model.AllowPorts.IsNull() {
		policy.AllowPorts = elements[int](ctx, model.AllowPorts, diags)
	}
	return policy
}

// elements gives a set's elements; nil for a null or empty one.
func elements[T any](ctx context.Context, set types.Set, diags *diag.Diagnostics) []T {
	if len(set.Elements()) == 0 {
		return nil
	}
	var out []T
	diags.Append(set.ElementsAs(ctx, &out, false)...)
	return out
}

// proxyObject is readProxy's inverse, without passwords.
func proxyObject(proxy *egress.Proxy) types.Object {
	if proxy == nil {
		return types.ObjectNull(proxyTypes)
	}
	clients := make(map[string]attr.Value, len(proxy.Clients))
	for name, client := range proxy.Clients {
		clients[name] = types.ObjectValueMust(clientTypes, map[string]attr.Value{
			"password_wo":         types.StringNull(),
			"password_wo_version": types.Int64Value(client.PasswordVersion),
			"allow_domains":       stringSet(client.AllowDomains),
		})
	}
	return types.ObjectValueMust(proxyTypes, map[string]attr.Value{
		"http_port": types.Int64Value(int64(proxy.HTTPPort)),
		"clients":   types.MapValueMust(types.ObjectType{AttrTypes: clientTypes}, clients),
		"policy":    policyObject(proxy.Policy),
	})
}

func policyObject(policy egress.Policy) types.Object {
	return types.ObjectValueMust(policyTypes, map[string]attr.Value{
		"default":       types.StringValue(string(policy.Default)),
		"allow_domains": stringSet(policy.AllowDomains),
		"allow_ports":   portSet(policy.AllowPorts),
	})
}

func stringSet(texts []string) types.Set {
	values := make([]attr.Value, len(texts))
	for i, text := range texts {
		values[i] = types.StringValue(text)
	}
	return types.SetValueMust(types.StringType, values)
}

func portSet(ports []int) types.Set {
	values := make([]attr.Value, len(ports))
	for i, port := range ports {
		values[i] = types.Int64Value(int64(port))
	}
	return types.SetValueMust(types.Int64Type, values)
}

// readHealthCheck translates a fully known health_check as a plan or state has
// it.
func readHealthCheck(ctx context.Context, o types.Object, diags *diag.Diagnostics) egress.HealthCheck {
	model := as[healthCheckModel](ctx, o, diags)
	check := egress.HealthCheck{Target: model.Target.ValueString(), From: egress.ProbeFrom(model.From.ValueString())}
	if text := model.Interval.ValueString(); text != "" {
		interval, err := time.ParseDuration(text)
		if err != nil {
			diags.AddAttributeError(healthCheckPath.AtName("interval"), "Invalid duration", sentence(err.Error()))
		}
		check.Interval = interval
	}
	return check
}

// healthCheckObject is readHealthCheck's inverse. The zero value, of an
// instance whose health check is not known, gives null.
func healthCheckObject(check egress.HealthCheck) types.Object {
	if check.From == "" {
		return types.ObjectNull(healthCheckTypes)
	}
	return types.ObjectValueMust(healthCheckTypes, map[string]attr.Value{
		"target":   textOrNull(check.Target),
		"from":     types.StringValue(string(check.From)),
		"interval": types.StringValue(check.Interval.String()),
	})
}

func textOrNull(text string) types.String {
	if text == "" {
		return types.StringNull()
	}
	return types.StringValue(text)
}

// readTags translates a fully known map of tags.
func readTags(ctx context.Context, m types.Map, diags *diag.Diagnostics) egress.Tags {
	tags := egress.Tags{}
	if !m.IsNull() {
		diags.Append(m.ElementsAs(ctx, &tags, false)...)
	}
	return tags
}

func tagsMap(tags egress.Tags) types.Map {
	values := make(map[string]attr.Value, len(tags))
	for k, v := range tags {
		values[k] = types.StringValue(v)
	}
	return types.MapValueMust(types.StringType, values)
}

// spec translates a plan and, for the write-only values that are nowhere else,
// the configuration into what a backend makes. Both are fully known at apply,
// apart from what the backend decides.
func spec(ctx context.Context, id egress.ProviderID, plan, config instanceModel, s *settings) (egress.Spec, diag.Diagnostics) {
	var diags diag.Diagnostics
	machine := machineOf(ctx, plan.KVM, &diags)
	out := egress.Spec{
		ID:              id,
		Description:     plan.Description.ValueString(),
		Stopped:         !plan.Running.ValueBool(),
		Tags:            readTags(ctx, plan.TagsAll, &diags),
		Proxy:           readProxy(ctx, plan.Proxy, &diags),
		UserData:        egress.NewSecret(plan.UserData.ValueString()),
		UserDataVersion: plan.UserDataWOVersion.ValueInt64(),
		HealthCheck:     readHealthCheck(ctx, plan.HealthCheck, &diags),
	}
	if out.UserDataVersion != 0 {
		out.UserData = egress.NewSecret(config.UserDataWO.ValueString())
	}
	if given := readProxy(ctx, config.Proxy, &diags); out.Proxy != nil && given != nil {
		for name, client := range out.Proxy.Clients {
			client.Password = given.Clients[name].Password
			out.Proxy.Clients[name] = client
		}
	}
	// That there is one was made sure by ModifyPlan, which runs at apply too.
	image, _ := s.images.find(machine.Image.ValueString())
	image.Name, image.SHA256 = machine.Image.ValueString(), machine.ImageSHA256.ValueString()
	out.KVM = &egress.KVMSpec{
		VCPUs:      int(machine.VCPUs.ValueInt64()),
		MemoryMiB:  int(machine.MemoryMiB.ValueInt64()),
		DiskGiB:    int(machine.DiskGiB.ValueInt64()),
		Image:      image,
		Pool:       machine.Pool.ValueString(),
		Interfaces: readInterfaces(ctx, machine, &diags),
		VirtType:   machine.VirtType.ValueString(),
		CPUMode:    machine.CPUMode.ValueString(),
		Firmware:   machine.Firmware.ValueString(),
		SecureBoot: machine.SecureBoot.ValueBool(),
		Autostart:  machine.Autostart.ValueBool(),
		ConsoleLog: machine.ConsoleLog.ValueString(),
		VendorData: machine.VendorData.ValueString(),
	}
	return out, diags
}
