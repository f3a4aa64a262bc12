package provider

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
)

// decideMachine resolves what the machine's attributes refer to in the
// provider block.
func (p *planning) decideMachine(ctx context.Context) {
	if p.plan.KVM.IsUnknown() {
		if p.prior != nil {
			p.replaceWhere(kvmPath, p.plan.KVM, p.prior.KVM)
		}
		return
	}
	config := machineOf(ctx, p.config.KVM, &p.diags)
	m := machineOf(ctx, p.plan.KVM, &p.diags)
	prior := unknownMachine()
	if p.prior != nil {
		prior = machineOf(ctx, p.prior.KVM, &p.diags)
	}

	p.checkHost(m.Host)
	p.decideSizes(&m, config, prior)
	p.decideImage(&m, prior)
	p.decideNetwork(ctx, &m, config, prior)
	m.VirtType = configuredOr(config.VirtType, prior.VirtType)
	m.CPUMode = configuredOr(config.CPUMode, prior.CPUMode)
	m.Firmware = configuredOr(config.Firmware, prior.Firmware)
	if config.SecureBoot.IsNull() {
		m.SecureBoot = prior.SecureBoot
	}
	m.UUID = prior.UUID
	m.Missing = textsList(nil)
	p.plan.KVM = object(ctx, m, kvmTypes, &p.diags)
	if p.prior == nil {
		return
	}

	p.replaceWhere(kvmPath.AtName("host"), m.Host, prior.Host)
	p.replaceWhere(kvmPath.AtName("image_sha256"), m.ImageSHA256, prior.ImageSHA256)
	p.replaceWhere(kvmPath.AtName("image_volume"), m.ImageVolume, prior.ImageVolume)
	p.replaceWhere(kvmPath.AtName("pool"), m.Pool, prior.Pool)
	p.replaceWhere(kvmPath.AtName("virt_type"), m.VirtType, prior.VirtType)
	p.replaceWhere(kvmPath.AtName("firmware"), m.Firmware, prior.Firmware)
	p.replaceWhere(kvmPath.AtName("secure_boot"), m.SecureBoot, prior.SecureBoot)
	p.replaceForNetwork(ctx, m, config, prior)
	for _, gone := range prior.Missing.Elements() {
		if gone.Equal(types.StringValue("root")) {
			p.replace.Append(kvmPath.AtName("missing_volumes"))
		}
	}
	p.refuseShrinking(m.DiskGiB, prior.DiskGiB)
	p.warnOfRestart(m, prior)
}

// unknownMachine is what is known of a machine that is still to be made.
func unknownMachine() kvmModel {
	return kvmModel{
		MachineType: types.StringNull(), VirtType: types.StringUnknown(), CPUMode: types.StringUnknown(), Firmware: types.StringUnknown(),
		SecureBoot: types.BoolValue(false), UUID: types.StringUnknown(), MAC: types.StringUnknown(), Interfaces: noInterfaces(),
	}
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

// decideImage plans what identifies the image: the checksum of a file, the name
// of a volume. A checksum that is read from a list on the web is known after the
// creation, and stays what it was for as long as the image has the same name.
func (p *planning) decideImage(m *kvmModel, prior kvmModel) {
	m.ImageSHA256, m.ImageVolume = types.StringNull(), types.StringNull()
	switch {
	case m.Image.IsUnknown():
		m.ImageSHA256, m.ImageVolume = types.StringUnknown(), types.StringUnknown()
		return
	case m.Image.IsNull():
		if p.prior != nil {
			m.ImageSHA256, m.ImageVolume = prior.ImageSHA256, prior.ImageVolume
		}
		return
	}
	image, found := p.settings.images.find(m.Image.ValueString())
	switch {
	case found == absent:
		p.refuse(kvmPath.AtName("image"), "Unknown image", m.Image.ValueString(), "kvm.images", p.settings.images.names())
	case image.SHA256 != "":
		m.ImageSHA256 = types.StringValue(image.SHA256)
	case image.Volume() != "":
		m.ImageVolume = types.StringValue(image.Volume())
	case image.ChecksumURL != "" && p.prior != nil && m.Image.Equal(prior.Image) && !prior.ImageSHA256.IsNull():
		m.ImageSHA256 = prior.ImageSHA256
	case image.Source != "" && found == present:
		m.ImageSHA256 = types.StringUnknown()
	default:
		m.ImageSHA256, m.ImageVolume = types.StringUnknown(), types.StringUnknown()
	}
}

// decideNetwork plans the interfaces and their MAC addresses.
func (p *planning) decideNetwork(ctx context.Context, m *kvmModel, config, prior kvmModel) {
	untold := p.prior != nil && p.prior.ConfigHash.IsNull() && prior.Network.IsNull() && prior.Interfaces.IsNull()
	if config.Network.IsNull() && config.Interfaces.IsNull() {
		m.Network = types.StringValue(defaultNetwork)
		if untold {
			// Others made the machine, and its network cannot be expressed here.
			m.Network, m.MAC = types.StringNull(), prior.MAC
			return
		}
	}
	if !config.Interfaces.IsNull() {
		m.Network = types.StringNull()
	}
	if m.Interfaces.IsUnknown() || m.Network.IsUnknown() || !isFullyKnown(ctx, config.Interfaces) {
		m.MAC = types.StringUnknown()
		return
	}
	wanted := readInterfaces(ctx, kvmModel{Network: config.Network, Interfaces: config.Interfaces}, &p.diags)
	if config.Interfaces.IsNull() {
		wanted = []egress.Interface{{Network: m.Network.ValueString()}}
	}
	macs := p.macs(ctx, wanted, m.Host, prior)
	if len(macs) == 0 {
		m.MAC = types.StringUnknown()
		return
	}
	m.MAC = macs[0]
	if m.Interfaces.IsNull() {
		return
	}
	models := interfaceModels(ctx, config.Interfaces, &p.diags)
	for i := range models {
		if models[i].MAC.IsNull() {
			models[i].MAC = macs[i]
		}
	}
	list, d := types.ListValueFrom(ctx, types.ObjectType{AttrTypes: interfaceTypes}, models)
	p.diags.Append(d...)
	m.Interfaces = list
}

// macs plans the MAC addresses of the interfaces: those given, those that the
// same machine has, and otherwise those that follow from host and name. A machine
// of another name gets others: both may run for a while.
func (p *planning) macs(ctx context.Context, wanted []egress.Interface, host types.String, prior kvmModel) []types.String {
	out := make([]types.String, len(wanted))
	had := readInterfaces(ctx, prior, &p.diags)
	same := p.prior != nil && len(had) == len(wanted) && p.plan.Name.Equal(p.prior.Name) && host.Equal(prior.Host)
	derivable := !host.IsUnknown() && !p.plan.Name.IsUnknown()
	var derived []string
	if derivable {
		derived = kvm.InterfaceMACs(host.ValueString(), p.plan.Name.ValueString(), wanted)
	}
	for i, nic := range wanted {
		switch {
		case nic.MAC != "":
			out[i] = types.StringValue(nic.MAC)
		case same && had[i].MAC != "":
			out[i] = types.StringValue(had[i].MAC)
		case derivable:
			out[i] = types.StringValue(derived[i])
		default:
			out[i] = types.StringUnknown()
		}
	}
	return out
}

// replaceForNetwork asks for a replacement where the machine is on other
// networks than it is wanted on.
func (p *planning) replaceForNetwork(ctx context.Context, m, config, prior kvmModel) {
	at := kvmPath.AtName("network")
	if !m.Interfaces.IsNull() {
		at = kvmPath.AtName("interfaces")
	}
	if m.Network.IsUnknown() || !isFullyKnown(ctx, m.Interfaces) {
		p.replaceWhere(at, types.StringUnknown(), types.StringValue(""))
		return
	}
	wanted := readInterfaces(ctx, m, &p.diags)
	given := interfaceModels(ctx, config.Interfaces, &p.diags)
	for i := range wanted {
		if i >= len(given) || given[i].MAC.IsNull() {
			wanted[i].MAC = "" // whichever it has
		}
	}
	if !sameInterfaces(wanted, readInterfaces(ctx, prior, &p.diags)) {
		p.replace.Append(at)
	}
}

// refuseShrinking refuses a root disk that is smaller than it is.
func (p *planning) refuseShrinking(planned, prior types.Int64) {
	if planned.IsUnknown() || prior.IsNull() || planned.ValueInt64() >= prior.ValueInt64() {
		return
	}
	p.diags.AddAttributeError(kvmPath.AtName("disk_gib"), "Root disk cannot shrink",
		fmt.Sprintf("kvm.disk_gib = %d, but the disk has %d GiB, and a disk that is in use only grows. Keep it at %d or more, or make a new machine: destroy this one first, or give the new one another name.",
			planned.ValueInt64(), prior.ValueInt64(), prior.ValueInt64()))
}

// warnOfRestart says that a running machine is restarted, and what for.
func (p *planning) warnOfRestart(m, prior kvmModel) {
	if len(p.replace) > 0 || p.prior.State.ValueString() != string(egress.Running) || !p.plan.Running.ValueBool() {
		return
	}
	var why []string
	for _, c := range []struct {
		name    string
		is, was attr.Value
	}{{"vcpus", m.VCPUs, prior.VCPUs}, {"memory_mib", m.MemoryMiB, prior.MemoryMiB}, {"cpu_mode", m.CPUMode, prior.CPUMode}, {"console_log", m.ConsoleLog, prior.ConsoleLog}} {
		if !c.is.Equal(c.was) {
			why = append(why, fmt.Sprintf("kvm.%s from %s to %s", c.name, c.was, c.is))
		}
	}
	if len(why) > 0 {
		p.diags.AddWarning(fmt.Sprintf("Egress proxy %s will be restarted", p.prior.Name),
			fmt.Sprintf("To change %s the machine is shut down and started again. Its clients are without it meanwhile; its addresses and its disk stay.", strings.Join(why, ", ")))
	}
}

func textsList(texts []string) types.List {
	values := make([]attr.Value, len(texts))
	for i, text := range texts {
		values[i] = types.StringValue(text)
	}
	return types.ListValueMust(types.StringType, values)
}
