package provider

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

type interfaceModel struct {
	Network     types.String `tfsdk:"network"`
	Bridge      types.String `tfsdk:"bridge"`
	Macvtap     types.String `tfsdk:"macvtap"`
	Portgroup   types.String `tfsdk:"portgroup"`
	VLAN        types.Int64  `tfsdk:"vlan"`
	MTU         types.Int64  `tfsdk:"mtu"`
	Model       types.String `tfsdk:"model"`
	MAC         types.String `tfsdk:"mac"`
	Addresses   types.List   `tfsdk:"addresses"`
	Gateways    types.List   `tfsdk:"gateways"`
	Nameservers types.List   `tfsdk:"nameservers"`
}

// virtio is the model of an interface that names none.
const virtio = "virtio"

// interfaceModels takes a known list apart.
func interfaceModels(ctx context.Context, list types.List, diags *diag.Diagnostics) []interfaceModel {
	if list.IsNull() || list.IsUnknown() {
		return nil
	}
	var out []interfaceModel
	diags.Append(list.ElementsAs(ctx, &out, false)...)
	return out
}

// readInterfaces translates the network of a fully known kvm attribute. A
// machine of which neither network nor interfaces is known has none.
func readInterfaces(ctx context.Context, m kvmModel, diags *diag.Diagnostics) []egress.Interface {
	if !m.Network.IsNull() {
		return []egress.Interface{{Network: m.Network.ValueString(), MAC: m.MAC.ValueString()}}
	}
	models := interfaceModels(ctx, m.Interfaces, diags)
	out := make([]egress.Interface, len(models))
	for i, nic := range models {
		out[i] = egress.Interface{
			Network: nic.Network.ValueString(), Bridge: nic.Bridge.ValueString(), Macvtap: nic.Macvtap.ValueString(),
			Portgroup: nic.Portgroup.ValueString(), VLAN: int(nic.VLAN.ValueInt64()), MTU: int(nic.MTU.ValueInt64()),
			Model: nic.Model.ValueString(), MAC: strings.ToLower(nic.MAC.ValueString()),
			Addresses:   parsedList(ctx, nic.Addresses, netip.ParsePrefix, diags),
			Gateways:    parsedList(ctx, nic.Gateways, netip.ParseAddr, diags),
			Nameservers: parsedList(ctx, nic.Nameservers, netip.ParseAddr, diags),
		}
		if out[i].Model == virtio {
			out[i].Model = ""
		}
	}
	return out
}

// parsedList gives a list's elements; those that their own validator refuses
// are left out.
func parsedList[T any](ctx context.Context, list types.List, parse func(string) (T, error), diags *diag.Diagnostics) []T {
	if list.IsNull() || list.IsUnknown() {
		return nil
	}
	var texts []types.String
	diags.Append(list.ElementsAs(ctx, &texts, false)...)
	var out []T
	for _, text := range texts {
		if v, err := parse(text.ValueString()); err == nil {
			out = append(out, v)
		}
	}
	return out
}

// interfacesList is readInterfaces' inverse.
func interfacesList(interfaces []egress.Interface) types.List {
	values := make([]attr.Value, len(interfaces))
	for i, nic := range interfaces {
		values[i] = types.ObjectValueMust(interfaceTypes, map[string]attr.Value{
			"network": textOrNull(nic.Network), "bridge": textOrNull(nic.Bridge), "macvtap": textOrNull(nic.Macvtap),
			"portgroup": textOrNull(nic.Portgroup), "vlan": numberOrNull(nic.VLAN), "mtu": numberOrNull(nic.MTU),
			"model": textOrNull(nic.Model), "mac": textOrNull(nic.MAC),
			"addresses": textList(nic.Addresses), "gateways": textList(nic.Gateways), "nameservers": textList(nic.Nameservers),
		})
	}
	return types.ListValueMust(types.ObjectType{AttrTypes: interfaceTypes}, values)
}

func noInterfaces() types.List { return types.ListNull(types.ObjectType{AttrTypes: interfaceTypes}) }

func textList[T fmt.Stringer](values []T) types.List {
	if len(values) == 0 {
		return types.ListNull(types.StringType)
	}
	out := make([]attr.Value, len(values))
	for i, v := range values {
		out[i] = types.StringValue(v.String())
	}
	return types.ListValueMust(types.StringType, out)
}

// isPlain tells whether an interface is what the short form, network, gives.
func isPlain(nic egress.Interface) bool {
	return nic.Network != "" && nic.Portgroup == "" && nic.VLAN == 0 && nic.MTU == 0 && nic.Model == "" &&
		len(nic.Addresses) == 0 && len(nic.Gateways) == 0 && len(nic.Nameservers) == 0
}

// sameInterfaces tells whether two machines are on the same networks in the
// same way. A MAC address that is not known is no difference.
func sameInterfaces(a, b []egress.Interface) bool {
	return slices.EqualFunc(a, b, func(a, b egress.Interface) bool {
		if a.MAC == "" || b.MAC == "" {
			a.MAC, b.MAC = "", ""
		}
		return a.Network == b.Network && a.Bridge == b.Bridge && a.Macvtap == b.Macvtap && a.Portgroup == b.Portgroup &&
			a.VLAN == b.VLAN && a.MTU == b.MTU && a.Model == b.Model && strings.EqualFold(a.MAC, b.MAC) &&
			slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Gateways, b.Gateways) && slices.Equal(a.Nameservers, b.Nameservers)
	})
}

// observeInterfaces puts into m the network that a machine was found on, in the
// form that the state has already where that still holds.
func observeInterfaces(ctx context.Context, m *kvmModel, found []egress.Interface, diags *diag.Diagnostics) {
	had := *m
	m.Network, m.Interfaces = types.StringNull(), noInterfaces()
	switch {
	case len(found) == 0:
	case !had.Interfaces.IsNull() && sameInterfaces(readInterfaces(ctx, had, diags), found):
		m.Interfaces = had.Interfaces
	case had.Interfaces.IsNull() && len(found) == 1 && isPlain(found[0]):
		m.Network = types.StringValue(found[0].Network)
	default:
		m.Interfaces = interfacesList(found)
	}
}

// completeInterfaces fills in the MAC addresses that the plan left open.
func completeInterfaces(ctx context.Context, planned types.List, found []egress.Interface, diags *diag.Diagnostics) types.List {
	if planned.IsUnknown() {
		return noInterfaces()
	}
	if planned.IsNull() || isFullyKnown(ctx, planned) {
		return planned
	}
	models := interfaceModels(ctx, planned, diags)
	for i := range models {
		mac := types.StringNull()
		if i < len(found) {
			mac = textOrNull(found[i].MAC)
		}
		models[i].MAC = either(models[i].MAC, mac)
	}
	list, d := types.ListValueFrom(ctx, types.ObjectType{AttrTypes: interfaceTypes}, models)
	diags.Append(d...)
	return list
}

// validateInterfaces checks what takes more than one attribute of an interface
// to see.
func validateInterfaces(ctx context.Context, m instanceModel, diags *diag.Diagnostics) {
	list := machineOf(ctx, m.KVM, diags).Interfaces
	if list.IsNull() || list.IsUnknown() {
		return
	}
	macs := map[string]int{}
	for i, element := range list.Elements() {
		object, ok := element.(types.Object)
		if !ok || object.IsUnknown() {
			continue
		}
		at := kvmPath.AtName("interfaces").AtListIndex(i)
		nic := as[interfaceModel](ctx, object, diags)
		validateInterface(ctx, at, nic, diags)
		if !isGiven(nic.MAC) {
			continue
		}
		mac := strings.ToLower(nic.MAC.ValueString())
		if other, taken := macs[mac]; taken {
			diags.AddAttributeError(at.AtName("mac"), "MAC address given twice",
				fmt.Sprintf("%s = %q, which interface %d has already. Give each interface its own, or leave mac out.", at.AtName("mac"), mac, other))
		}
		macs[mac] = i
	}
}

func validateInterface(ctx context.Context, at path.Path, nic interfaceModel, diags *diag.Diagnostics) {
	var given []string
	open := false
	for _, kind := range []struct {
		name  string
		value types.String
	}{{"network", nic.Network}, {"bridge", nic.Bridge}, {"macvtap", nic.Macvtap}} {
		open = open || kind.value.IsUnknown()
		if isGiven(kind.value) {
			given = append(given, kind.name)
		}
	}
	if len(given) > 1 || (len(given) == 0 && !open) {
		what := "none of them is"
		if len(given) > 1 {
			what = strings.Join(given, " and ") + " are"
		}
		diags.AddAttributeError(at, "Interface must be on one thing", fmt.Sprintf("Of %s exactly one of network, bridge and macvtap is to be given; %s.", at, what))
	}
	if isGiven(nic.Portgroup) && nic.Network.IsNull() {
		diags.AddAttributeError(at.AtName("portgroup"), "Portgroup without network",
			fmt.Sprintf("%s = %q, but only a libvirt network has portgroups. Give network, or leave portgroup out.", at.AtName("portgroup"), nic.Portgroup.ValueString()))
	}
	validateStatic(ctx, at, nic, diags)
}

func validateStatic(ctx context.Context, at path.Path, nic interfaceModel, diags *diag.Diagnostics) {
	if nic.Addresses.IsUnknown() || !isFullyKnown(ctx, nic.Addresses) {
		return
	}
	for name, list := range map[string]types.List{"gateways": nic.Gateways, "nameservers": nic.Nameservers} {
		if nic.Addresses.IsNull() && !list.IsNull() && !list.IsUnknown() {
			diags.AddAttributeError(at.AtName(name), "Static setting without addresses",
				fmt.Sprintf("%s is given, but the interface has no addresses, so DHCP tells it. Give addresses, or leave %s out.", at.AtName(name), name))
			return
		}
	}
	if !isFullyKnown(ctx, nic.Gateways) {
		return
	}
	networks := parsedList(ctx, nic.Addresses, netip.ParsePrefix, diags)
	families := map[bool]bool{}
	for _, gateway := range parsedList(ctx, nic.Gateways, netip.ParseAddr, diags) {
		if families[gateway.Is4()] {
			diags.AddAttributeError(at.AtName("gateways"), "Two gateways of one kind",
				fmt.Sprintf("%s has a second one for the same address family, %s. Give at most one for IPv4 and one for IPv6.", at.AtName("gateways"), gateway))
		}
		families[gateway.Is4()] = true
		if !gateway.IsLinkLocalUnicast() && !slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(gateway) }) {
			diags.AddAttributeError(at.AtName("gateways"), "Gateway out of reach",
				fmt.Sprintf("The gateway %s lies in none of the networks of addresses (%s). Correct it, or the prefix lengths.", gateway, joinTexts(networks)))
		}
	}
}

func joinTexts[T fmt.Stringer](values []T) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = v.String()
	}
	return strings.Join(texts, ", ")
}
