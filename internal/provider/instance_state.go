package provider

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// complete gives the state after an apply: what was planned, and where the
// plan left a value open, what the instance was found to be. What neither
// knows becomes null, so that the state holds no unknown value whatever
// happened.
func complete(ctx context.Context, plan instanceModel, instance egress.Instance) (instanceModel, diag.Diagnostics) {
	var diags diag.Diagnostics
	found := runtimeOf(instance, plan.Proxy, &diags)
	m := plan
	m.UserDataWO = types.StringNull()
	m.ID = either(m.ID, textOrNull(instance.ID.String()))
	m.State = either(m.State, found.State)
	m.Ready = either(m.Ready, found.Ready)
	m.Addresses = either(m.Addresses, found.Addresses)
	m.Address = either(m.Address, found.Address)
	m.HTTPURL = either(m.HTTPURL, found.HTTPURL)
	m.ConfigHash = either(m.ConfigHash, textOrNull(instance.ConfigHash))
	m.CreatedAt = either(m.CreatedAt, found.CreatedAt)
	m.TagsAll = either(m.TagsAll, tagsMap(instance.Tags))
	m.HealthCheck = either(m.HealthCheck, healthCheckObject(instance.HealthCheck))

	machine := machineOf(ctx, plan.KVM, &diags)
	var k egress.KVMInstance
	if instance.KVM != nil {
		k = *instance.KVM
	}
	machine.MachineType = either(machine.MachineType, types.StringNull())
	machine.VCPUs = either(machine.VCPUs, numberOrNull(k.VCPUs))
	machine.MemoryMiB = either(machine.MemoryMiB, numberOrNull(k.MemoryMiB))
	machine.DiskGiB = either(machine.DiskGiB, numberOrNull(k.DiskGiB))
	machine.Network = either(machine.Network, types.StringNull())
	machine.Interfaces = completeInterfaces(ctx, machine.Interfaces, k.Interfaces, &diags)
	machine.VirtType = either(machine.VirtType, textOrNull(k.VirtType))
	machine.CPUMode = either(machine.CPUMode, textOrNull(k.CPUMode))
	machine.Firmware = either(machine.Firmware, textOrNull(k.Firmware))
	machine.SecureBoot = either(machine.SecureBoot, types.BoolValue(k.SecureBoot))
	machine.UUID = either(machine.UUID, textOrNull(cmp.Or(k.UUID, instance.UID)))
	machine.MAC = either(machine.MAC, textOrNull(k.MAC))
	machine.ImageSHA256 = either(machine.ImageSHA256, textOrNull(k.ImageSHA256))
	machine.ImageVolume = either(machine.ImageVolume, textOrNull(k.ImageVolume))
	m.KVM = object(ctx, machine, kvmTypes, &diags)
	return m, diags
}

// either gives the planned value, or found where the plan left it open.
func either[V attr.Value](planned, found V) V {
	if planned.IsUnknown() {
		return found
	}
	return planned
}

// observe gives the state after a refresh. What cannot be read back (write-only
// values, user_data, time limits) stays as it was, and so does what the
// instance does not tell; everything else becomes what was found. A prior state
// without a name is that of an import.
func observe(ctx context.Context, prior instanceModel, instance egress.Instance, s *settings) (instanceModel, diag.Diagnostics) {
	var diags diag.Diagnostics
	importing := prior.Name.IsNull()
	m := prior
	m.ID = types.StringValue(instance.ID.String())
	m.Name = types.StringValue(instance.ID.Name)
	m.Proxy = observedProxy(ctx, prior.Proxy, instance, &diags)
	m.HealthCheck = observedHealthCheck(ctx, prior.HealthCheck, instance.HealthCheck, &diags)
	m.TagsAll = tagsMap(instance.Tags)
	if importing {
		m.Tags = importedTags(ctx, instance.Tags, s.defaultTags, &diags)
		m.Running = types.BoolValue(instance.State != egress.Stopped)
		m.Protected = types.BoolValue(false)
		if m.HealthCheck.IsNull() { // others made it
			m.HealthCheck = healthCheckObject(egress.HealthCheck{From: egress.FromNone, Interval: time.Second})
		}
	} else {
		m.Tags = observedTags(ctx, instance.Tags, prior, &diags)
	}
	m.Description = observedText(prior.Description, instance.Description)
	m.ConfigHash = textOrNull(instance.ConfigHash)
	if instance.UserDataVersion != 0 {
		m.UserDataWOVersion = types.Int64Value(instance.UserDataVersion)
	}
	found := runtimeOf(instance, m.Proxy, &diags)
	m.State, m.Ready, m.Addresses, m.Address, m.HTTPURL = found.State, found.Ready, found.Addresses, found.Address, found.HTTPURL
	if !found.CreatedAt.IsNull() {
		m.CreatedAt = found.CreatedAt
	}
	if instance.KVM != nil {
		machine := machineOf(ctx, prior.KVM, &diags)
		observeInterfaces(ctx, &machine, instance.KVM.Interfaces, &diags)
		machine = observedMachine(machine, instance, s)
		if importing {
			machine.MachineType = textOrNull(s.machineTypes.only(func(t machineType) bool { return t == sizes(machine) }))
		}
		m.KVM = object(ctx, machine, kvmTypes, &diags)
	}
	return m, diags
}

// settledAddresses gives the addresses that a refresh goes by. A running
// machine that tells none for the moment, as while it renews its lease, still
// has those it had; and the one clients were given first stays first for as
// long as the machine has it: a refresh does not try which one answers.
func settledAddresses(ctx context.Context, prior types.List, instance egress.Instance) []netip.Addr {
	var texts []string
	if prior.IsNull() || prior.ElementsAs(ctx, &texts, false).HasError() {
		return instance.Addresses
	}
	var had []netip.Addr
	for _, text := range texts {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return instance.Addresses
		}
		had = append(had, address)
	}
	if len(instance.Addresses) == 0 && instance.State == egress.Running {
		return had
	}
	if len(had) == 0 || !slices.Contains(instance.Addresses, had[0]) {
		return instance.Addresses
	}
	others := slices.DeleteFunc(slices.Clone(instance.Addresses), func(a netip.Addr) bool { return a == had[0] })
	return slices.Insert(others, 0, had[0])
}

// runtimeOf gives the part of the state that comes and goes with the running
// machine, and the time of its creation.
func runtimeOf(instance egress.Instance, proxy types.Object, diags *diag.Diagnostics) instanceModel {
	m := instanceModel{
		State:   textOrNull(string(instance.State)),
		Ready:   types.BoolValue(instance.Ready),
		HTTPURL: types.StringNull(),
	}
	addresses := make([]attr.Value, len(instance.Addresses))
	for i, address := range instance.Addresses {
		addresses[i] = types.StringValue(address.String())
	}
	list, d := types.ListValue(types.StringType, addresses)
	diags.Append(d...)
	m.Addresses = list
	if len(instance.Addresses) > 0 {
		m.Address = types.StringValue(instance.Addresses[0].String())
		if port, ok := httpPort(proxy); ok {
			m.HTTPURL = types.StringValue("http://" + net.JoinHostPort(instance.Addresses[0].String(), strconv.Itoa(port)))
		}
	}
	if !instance.CreatedAt.IsZero() {
		m.CreatedAt = types.StringValue(instance.CreatedAt.UTC().Format(time.RFC3339))
	}
	return m
}

// httpPort gives the listener's port, if there is a proxy and it is known.
func httpPort(proxy types.Object) (int, bool) {
	port, ok := proxy.Attributes()["http_port"].(types.Int64)
	if !ok || port.IsNull() || port.IsUnknown() {
		return 0, false
	}
	return int(port.ValueInt64()), true
}

// observedProxy keeps the state's own form of a configuration that is still
// the instance's.
func observedProxy(ctx context.Context, prior types.Object, instance egress.Instance, diags *diag.Diagnostics) types.Object {
	if instance.Proxy == nil {
		return types.ObjectNull(proxyTypes)
	}
	was := egress.Spec{Proxy: readProxy(ctx, prior, diags)}
	is := egress.Spec{Proxy: instance.Proxy}
	if was.ConfigHash() == is.ConfigHash() {
		return prior
	}
	return proxyObject(instance.Proxy)
}

func observedHealthCheck(ctx context.Context, prior types.Object, check egress.HealthCheck, diags *diag.Diagnostics) types.Object {
	if check.From == "" || (!prior.IsNull() && readHealthCheck(ctx, prior, diags) == check) {
		return prior
	}
	return healthCheckObject(check)
}

// importedTags takes from the instance's tags those that the provider block
// gives to every instance.
func importedTags(ctx context.Context, stored egress.Tags, defaults types.Map, diags *diag.Diagnostics) types.Map {
	own := egress.Tags{}
	var given egress.Tags
	if isFullyKnown(ctx, defaults) {
		given = readTags(ctx, defaults, diags)
	}
	for k, v := range stored {
		if d, ok := given[k]; !ok || d != v {
			own[k] = v
		}
	}
	if len(own) == 0 {
		return types.MapNull(types.StringType)
	}
	return tagsMap(own)
}

// observedTags gives the instance's tags without those that, by the prior
// state, came from the provider block: a changed one of these shows in
// tags_all. Tags that someone else added are the instance's own.
func observedTags(ctx context.Context, stored egress.Tags, prior instanceModel, diags *diag.Diagnostics) types.Map {
	own := egress.Tags{}
	tags, all := readTags(ctx, prior.Tags, diags), readTags(ctx, prior.TagsAll, diags)
	for k, v := range stored {
		_, ours := tags[k]
		_, known := all[k]
		if ours || !known {
			own[k] = v
		}
	}
	if len(own) == 0 && prior.Tags.IsNull() {
		return types.MapNull(types.StringType)
	}
	return tagsMap(own)
}

func observedMachine(prior kvmModel, instance egress.Instance, s *settings) kvmModel {
	k := instance.KVM
	m := prior
	m.Host = types.StringValue(instance.ID.Location)
	m.VCPUs = numberOrNull(k.VCPUs)
	m.MemoryMiB = numberOrNull(k.MemoryMiB)
	if k.DiskGiB != 0 {
		m.DiskGiB = types.Int64Value(int64(k.DiskGiB))
	}
	if k.Pool != "" {
		m.Pool = types.StringValue(k.Pool)
	}
	m.VirtType = textOrNull(k.VirtType)
	m.CPUMode = types.StringNull()
	if slices.Contains(cpuModes, k.CPUMode) {
		m.CPUMode = types.StringValue(k.CPUMode)
	}
	m.Firmware = textOrNull(k.Firmware)
	m.SecureBoot = types.BoolValue(k.SecureBoot)
	m.Autostart = types.BoolValue(k.Autostart)
	m.ConsoleLog = observedText(m.ConsoleLog, k.ConsoleLog)
	m.Missing = textsList(k.MissingVolumes)
	m.ImageVolume = textOrNull(k.ImageVolume)
	m.UUID = textOrNull(k.UUID)
	m.MAC = textOrNull(k.MAC)
	if k.ImageSHA256 != "" {
		m.ImageSHA256 = types.StringValue(k.ImageSHA256)
	}
	m.Image = observedImage(prior.Image, k, s)
	return m
}

// observedImage names the image a machine was made from. Names are the
// provider block's affair, checksums are the machine's: a name that stands for
// the machine's checksum is kept, else the one it was made under holds, unless
// the provider block knows the checksum by another name only.
func observedImage(prior types.String, k *egress.KVMInstance, s *settings) types.String {
	if k.ImageSHA256 == "" && k.ImageVolume == "" {
		return either(prior, textOrNull(k.Image))
	}
	isOf := func(i egress.Image) bool {
		if k.ImageVolume != "" {
			return i.Volume() == k.ImageVolume
		}
		return i.SHA256 == k.ImageSHA256
	}
	if image, _ := s.images.find(prior.ValueString()); isOf(image) {
		return prior
	}
	if _, presence := s.images.find(k.Image); presence == absent {
		if name := s.images.only(isOf); name != "" {
			return types.StringValue(name)
		}
	}
	return textOrNull(k.Image)
}

// observedText gives what was found; an empty text is what the state takes it
// for.
func observedText(prior types.String, found string) types.String {
	if found == "" && prior.ValueString() == "" {
		return prior
	}
	return textOrNull(found)
}

func sizes(m kvmModel) machineType {
	return machineType{VCPUs: m.VCPUs.ValueInt64(), MemoryMiB: m.MemoryMiB.ValueInt64(), DiskGiB: m.DiskGiB.ValueInt64()}
}

func numberOrNull(n int) types.Int64 {
	if n == 0 {
		return types.Int64Null()
	}
	return types.Int64Value(int64(n))
}
