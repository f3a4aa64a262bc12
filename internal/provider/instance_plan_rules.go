package provider

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/cloudinit"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
)

// checkComplete makes sure that a machine can be made from the configuration:
// one that exists needs less, since import cannot read everything back.
func (p *planning) checkComplete(ctx context.Context) {
	if name := p.plan.Name; !name.IsUnknown() {
		if err := kvm.ValidateName(name.ValueString()); err != nil {
			p.diags.AddAttributeError(path.Root("name"), "Invalid value of name", sentence(err.Error()))
		}
	}
	p.checkConfigured(ctx)
	if p.plan.KVM.IsUnknown() {
		return
	}
	m := machineOf(ctx, p.plan.KVM, &p.diags)
	if m.Image.IsNull() {
		p.diags.AddAttributeError(kvmPath.AtName("image"), "Missing image of the machine",
			fmt.Sprintf("A machine is to be made, and kvm.image is not given. Name an image of the provider block; it has: %s.", p.settings.images.names()))
	}
	var missing []string
	for _, size := range []struct {
		name  string
		value types.Int64
	}{{"vcpus", m.VCPUs}, {"memory_mib", m.MemoryMiB}, {"disk_gib", m.DiskGiB}} {
		if size.value.IsNull() {
			missing = append(missing, "kvm."+size.name)
		}
	}
	if len(missing) > 0 && !p.diags.HasError() {
		p.diags.AddAttributeError(kvmPath, "Missing size of the machine",
			fmt.Sprintf("Without kvm.machine_type all of kvm.vcpus, kvm.memory_mib and kvm.disk_gib must be given; missing: %s. Give them, or name a machine type of the provider block.", strings.Join(missing, ", ")))
	}
	if isGiven(m.MemoryMiB) && m.MemoryMiB.ValueInt64() < minMemoryMiB {
		p.diags.AddAttributeError(kvmPath.AtName("memory_mib"), "Too little memory",
			fmt.Sprintf("kvm.memory_mib = %d, but a machine needs at least %d to boot. Give it more.", m.MemoryMiB.ValueInt64(), minMemoryMiB))
	}
}

// checkConfigured makes sure that something configures the machine, and that
// what is secret is at hand: an existing machine has it already.
func (p *planning) checkConfigured(ctx context.Context) {
	if p.config.Proxy.IsNull() && p.config.UserData.IsNull() && p.config.UserDataWO.IsNull() && p.config.UserDataWOVersion.IsNull() {
		p.diags.AddAttributeError(proxyPath, "Nothing configures the machine",
			"None of proxy, user_data and user_data_wo is given. Give proxy to have the provider configure the machine, or bring your own cloud-init with user_data or user_data_wo.")
	}
	if p.config.UserDataWO.IsNull() && isGiven(p.config.UserDataWOVersion) {
		p.diags.AddAttributeError(path.Root("user_data_wo"), "Missing user_data_wo",
			fmt.Sprintf("user_data_wo_version = %d, but user_data_wo is not given. Give it, or take the version out.", p.config.UserDataWOVersion.ValueInt64()))
	}
	if p.config.Proxy.IsUnknown() || p.config.Proxy.IsNull() {
		return
	}
	clients := as[proxyModel](ctx, p.config.Proxy, &p.diags).Clients
	for name, element := range clients.Elements() {
		object, ok := element.(types.Object)
		if !ok || object.IsNull() || object.IsUnknown() {
			continue
		}
		if as[clientModel](ctx, object, &p.diags).PasswordWO.IsNull() {
			at := proxyPath.AtName("clients").AtMapKey(name).AtName("password_wo")
			p.diags.AddAttributeError(at, fmt.Sprintf("Missing value of %s", at),
				fmt.Sprintf("A machine is to be made, and %s is required for that. Give it a value.", at))
		}
	}
}

// refuseReplacement keeps a protected instance from being replaced.
func (p *planning) refuseReplacement() {
	if p.prior.Protected.ValueBool() {
		p.diags.AddAttributeError(path.Root("deletion_protection"), protectedSummary(p.prior.Name),
			fmt.Sprintf("The change of %s needs another machine, and the instance is protected from being destroyed. "+
				"Set deletion_protection to false and apply that alone first; or take the change back.", joinTexts(p.replace)))
	}
}

func protectedSummary(name types.String) string {
	return fmt.Sprintf("Egress proxy %s is protected", name)
}

// explainAdoption says what becomes of a machine that others configured.
func (p *planning) explainAdoption() {
	if len(p.replace) > 0 || !p.prior.ConfigHash.IsNull() || p.plan.ConfigHash.IsNull() {
		return
	}
	p.diags.AddWarning(fmt.Sprintf("Egress proxy %s is adopted as it runs", p.prior.Name),
		"The machine was not configured by this provider, and is not reconfigured now: its proxy must work as the configuration says already, or the apply fails. "+
			"Changes of the configuration after that replace the machine; terraform apply -replace does so now.")
}

// checkVendorData refuses vendor-data that cloud-init would skip without a
// word.
func checkVendorData(text string) error {
	_, err := cloudinit.DetectContentType([]byte(text))
	return err
}
