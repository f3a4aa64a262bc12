package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/cloudinit"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

// validateInstance checks what takes more than one attribute to see. A rule
// whose inputs are not all known yet passes; it is asked again when they are.
func validateInstance(ctx context.Context, m instanceModel) diag.Diagnostics {
	var diags diag.Diagnostics
	validateUserData(m, &diags)
	validateFirmware(ctx, m, &diags)
	validateInterfaces(ctx, m, &diags)
	if diags.HasError() || !validateClients(ctx, m, &diags) {
		return diags
	}
	validateHealthCheck(ctx, m, &diags)
	return diags
}

func validateUserData(m instanceModel, diags *diag.Diagnostics) {
	userDataWO, version := path.Root("user_data_wo"), path.Root("user_data_wo_version")
	if isGiven(m.UserData) && isGiven(m.UserDataWO) {
		diags.AddAttributeError(userDataWO, "Two kinds of user-data", "user_data and user_data_wo are both given. Give one of them.")
	}
	checkUserData(userDataWO, m.UserDataWO, diags)
	checkUserData(path.Root("user_data"), m.UserData, diags)
	if isGiven(m.UserDataWO) && m.UserDataWOVersion.IsNull() {
		diags.AddAttributeError(version, "Missing version of user_data_wo",
			"user_data_wo is not stored, so a change of it cannot be seen. Set user_data_wo_version to 1, and raise it whenever user_data_wo changes.")
	}
}

// checkUserData refuses user-data that cloud-init would skip without a word: the
// machine would come up without it. It may be secret, so none of it is shown.
func checkUserData(at path.Path, userData types.String, diags *diag.Diagnostics) {
	if !isGiven(userData) {
		return
	}
	if _, err := cloudinit.DetectContentType([]byte(userData.ValueString())); err != nil {
		diags.AddAttributeError(at, fmt.Sprintf("Invalid value of %s", at), sentence(err.Error())+
			fmt.Sprintf(" Put the line that says what it is, such as #cloud-config, first; where there is no user-data to give, leave %s out or set it to null.", at))
	}
}

// isGiven tells whether a value is given and known.
func isGiven(v attr.Value) bool {
	return !v.IsNull() && !v.IsUnknown()
}

func validateFirmware(ctx context.Context, m instanceModel, diags *diag.Diagnostics) {
	k := machineOf(ctx, m.KVM, diags)
	if k.SecureBoot.ValueBool() && !k.Firmware.IsUnknown() && k.Firmware.ValueString() != "efi" {
		diags.AddAttributeError(kvmPath.AtName("secure_boot"), "Secure boot without EFI",
			"kvm.secure_boot = true, but only EFI firmware has it. Set kvm.firmware to \"efi\", or leave kvm.secure_boot out.")
	}
}

// validateClients refuses an open proxy. It tells whether the proxy is there
// and known in full.
func validateClients(ctx context.Context, m instanceModel, diags *diag.Diagnostics) bool {
	if m.Proxy.IsUnknown() {
		return false
	}
	if m.Proxy.IsNull() {
		return true
	}
	clients := as[proxyModel](ctx, m.Proxy, diags).Clients
	if !clients.IsUnknown() && len(clients.Elements()) == 0 {
		diags.AddAttributeError(proxyPath.AtName("clients"), "Proxy without clients",
			"proxy.clients is empty, so the proxy would be open to everyone who reaches it. Declare at least one client with password_wo and password_wo_version.")
		return false
	}
	return true
}

// validateHealthCheck makes sure that there is a target which the policy lets
// some client reach: a check that cannot pass would fail every apply.
func validateHealthCheck(ctx context.Context, m instanceModel, diags *diag.Diagnostics) {
	if m.HealthCheck.IsUnknown() {
		return
	}
	check := as[healthCheckModel](ctx, m.HealthCheck, diags)
	if check.From.IsUnknown() || check.From.ValueString() == string(egress.FromNone) {
		return
	}
	from, target := healthCheckPath.AtName("from"), healthCheckPath.AtName("target")
	if m.Proxy.IsNull() {
		if isGiven(check.From) {
			diags.AddAttributeError(from, "Health check without proxy",
				fmt.Sprintf("health_check.from = %q, but without proxy the provider does not know what to check. Set it to \"none\", or leave it out.", check.From.ValueString()))
		}
		return
	}
	if check.Target.IsUnknown() {
		return
	}
	wanted, known := readKnownProxy(ctx, m.Proxy, diags)
	if !known || diags.HasError() {
		return
	}
	if check.Target.IsNull() {
		if _, ok := proxy.DefaultTarget(*wanted); !ok {
			diags.AddAttributeError(target, "Missing target of the health check",
				"No allow_domains of the policy or a client names a single host, so there is nothing to reach through the proxy by default. "+
					"Set health_check.target to a HOST:PORT that the policy permits, or health_check.from to \"none\".")
		}
		return
	}
	if checkHostPort(check.Target.ValueString()) != nil {
		return // its own validator says so
	}
	if _, ok := proxy.TargetClient(*wanted, check.Target.ValueString()); !ok {
		diags.AddAttributeError(target, "Target of the health check not permitted",
			fmt.Sprintf("health_check.target = %q, but the policy lets no client go there. Choose a HOST:PORT that it permits, or add the host to allow_domains and the port to allow_ports.", check.Target.ValueString()))
	}
}

// readKnownProxy is readProxy for a configuration of which everything that
// decides who may go where must be known, but passwords need not.
func readKnownProxy(ctx context.Context, o types.Object, diags *diag.Diagnostics) (*egress.Proxy, bool) {
	model := as[proxyModel](ctx, o, diags)
	if model.Clients.IsUnknown() || !isFullyKnown(ctx, model.Policy) {
		return nil, false
	}
	for _, element := range model.Clients.Elements() {
		client, ok := element.(types.Object)
		if !ok || client.IsNull() || client.IsUnknown() || !isFullyKnown(ctx, client.Attributes()["allow_domains"]) {
			return nil, false
		}
	}
	return readProxy(ctx, o, diags), true
}
