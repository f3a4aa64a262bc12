package provider

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

func TestAProxyIsTheSameAfterATripThroughTheState(t *testing.T) {
	for name, want := range map[string]*egress.Proxy{
		"none": nil,
		"full": {
			HTTPPort: 8080,
			Clients:  map[string]egress.Client{"a": {PasswordVersion: 3, AllowDomains: []string{".example.org"}}, "b.c": {PasswordVersion: 1}},
			Policy:   egress.Policy{Default: egress.Allow, AllowDomains: []string{"example.org"}, AllowPorts: []int{443}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var diags diag.Diagnostics
			got := readProxy(t.Context(), proxyObject(want), &diags)
			if diags.HasError() {
				t.Fatal(diags)
			}
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b egress.Secret) bool { return a.Reveal() == b.Reveal() })); diff != "" {
				t.Errorf("changed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAHealthCheckIsTheSameAfterATripThroughTheState(t *testing.T) {
	for _, want := range []egress.HealthCheck{
		{},
		{From: egress.FromNone, Interval: time.Second},
		{Target: "example.org:443", From: egress.FromClient, Interval: 1500 * time.Millisecond},
	} {
		var diags diag.Diagnostics
		if got := readHealthCheck(t.Context(), healthCheckObject(want), &diags); got != want || diags.HasError() {
			t.Errorf("%+v became %+v: %v", want, got, diags)
		}
	}
}

func found() egress.Instance {
	return egress.Instance{
		ID: ciID, State: egress.Running, Ready: true,
		Addresses:   []netip.Addr{netip.MustParseAddr("2001:db8::5"), netip.MustParseAddr("192.0.2.5")},
		Tags:        egress.Tags{"team": "platform", "env": "prod"},
		ConfigHash:  "abc",
		Proxy:       &egress.Proxy{HTTPPort: 3128, Clients: map[string]egress.Client{"ci": {PasswordVersion: 1}}, Policy: defaultPolicy()},
		HealthCheck: egress.HealthCheck{From: egress.FromNone, Interval: time.Second},
		CreatedAt:   time.Date(2026, 12, 1, 10, 0, 0, 0, time.FixedZone("", 3600)),
		KVM: &egress.KVMInstance{
			UUID: "u", MAC: "m", VCPUs: 1, MemoryMiB: 512, DiskGiB: 4, Image: "debian12", ImageSHA256: sumA,
			Pool: "default", Interfaces: []egress.Interface{{Network: "default"}}, VirtType: "qemu",
		},
	}
}

func someSettings() *settings {
	return &settings{
		machineTypes: table[machineType]{entries: map[string]entry[machineType]{"small": {value: machineType{1, 512, 4}}, "big": {value: machineType{4, 4096, 40}}}},
		images:       table[egress.Image]{entries: map[string]entry[egress.Image]{"debian12": {value: egress.Image{Name: "debian12", SHA256: sumA}}}},
		defaultTags:  tagsMap(egress.Tags{"team": "platform"}),
	}
}

// imported is the state that an import begins with.
func imported() instanceModel {
	return instanceModel{
		Name: types.StringNull(), KVM: types.ObjectNull(kvmTypes), Proxy: types.ObjectNull(proxyTypes), HealthCheck: types.ObjectNull(healthCheckTypes),
		Tags: types.MapNull(types.StringType), TagsAll: types.MapNull(types.StringType), Addresses: types.ListNull(types.StringType),
		Timeouts: timeouts.Value{Object: types.ObjectNull(nil)}, ID: types.StringValue(ciID.String()),
	}
}

func observed(t *testing.T, prior instanceModel, instance egress.Instance, s *settings) (instanceModel, kvmModel) {
	t.Helper()
	m, diags := observe(t.Context(), prior, instance, s)
	machine := machineOf(t.Context(), m.KVM, &diags)
	if diags.HasError() {
		t.Fatal(diags)
	}
	return m, machine
}

func TestImportReadsEverythingThatCanBeRead(t *testing.T) {
	m, machine := observed(t, imported(), found(), someSettings())
	for what, c := range map[string]struct{ got, want attr.Value }{
		"name":         {m.Name, types.StringValue("ci-egress-1")},
		"host":         {machine.Host, types.StringValue("hv1")},
		"machine type": {machine.MachineType, types.StringValue("small")},
		"image":        {machine.Image, types.StringValue("debian12")},
		"memory":       {machine.MemoryMiB, types.Int64Value(512)},
		"tags":         {m.Tags, tagsMap(egress.Tags{"env": "prod"})},
		"all tags":     {m.TagsAll, tagsMap(egress.Tags{"env": "prod", "team": "platform"})},
		"URL":          {m.HTTPURL, types.StringValue("http://[2001:db8::5]:3128")},
		"creation":     {m.CreatedAt, types.StringValue("2026-12-01T09:00:00Z")},
		"proxy":        {m.Proxy, proxyObject(found().Proxy)},
		"user-data":    {m.UserData, types.StringNull()},
	} {
		if !c.got.Equal(c.want) {
			t.Errorf("%s is %s, want %s", what, c.got, c.want)
		}
	}
}

func TestTheVersionOfWriteOnlyUserDataIsTheInstances(t *testing.T) {
	for name, c := range map[string]struct {
		prior types.Int64
		found int64
		want  types.Int64
	}{
		"imported":                   {types.Int64Null(), 3, types.Int64Value(3)},
		"imported, it has none":      {types.Int64Null(), 0, types.Int64Null()},
		"refreshed":                  {types.Int64Value(3), 3, types.Int64Value(3)},
		"refreshed, another":         {types.Int64Value(3), 4, types.Int64Value(4)},
		"refreshed, it does not say": {types.Int64Value(3), 0, types.Int64Value(3)},
	} {
		t.Run(name, func(t *testing.T) {
			prior, instance := imported(), found()
			prior.UserDataWOVersion, instance.UserDataVersion = c.prior, c.found
			if m, _ := observed(t, prior, instance, someSettings()); !m.UserDataWOVersion.Equal(c.want) {
				t.Errorf("the version is %s, want %s", m.UserDataWOVersion, c.want)
			}
		})
	}
}

func TestImportNamesAMachineTypeOnlyWhenOneAloneFits(t *testing.T) {
	s := someSettings()
	s.machineTypes.entries["tiny"] = s.machineTypes.entries["small"]
	if _, machine := observed(t, imported(), found(), s); !machine.MachineType.IsNull() {
		t.Errorf("with two that fit the machine type is %s", machine.MachineType)
	}
}

func TestTheImageGoesByItsChecksum(t *testing.T) {
	images := func(entries map[string]string) *settings {
		s := someSettings()
		s.images.entries = map[string]entry[egress.Image]{}
		for name, sum := range entries {
			// Its source, which has no part in this, is not known yet.
			s.images.entries[name] = entry[egress.Image]{value: egress.Image{Name: name, SHA256: sum}, pending: true}
		}
		return s
	}
	for name, c := range map[string]struct {
		prior  string
		images map[string]string
		want   string
	}{
		"imported":                           {"", map[string]string{"debian12": sumA}, "debian12"},
		"imported, renamed in the block":     {"", map[string]string{"bookworm": sumA}, "bookworm"},
		"imported, renamed to two":           {"", map[string]string{"bookworm": sumA, "stable": sumA}, "debian12"},
		"renamed in the state":               {"bookworm", map[string]string{"bookworm": sumA, "debian12": sumA}, "bookworm"},
		"the block has another checksum":     {"debian12", map[string]string{"debian12": sumB}, "debian12"},
		"made from another than the state's": {"other", map[string]string{"debian12": sumA, "other": sumB}, "debian12"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := observedImage(textOrNull(c.prior), found().KVM, images(c.images)); got.ValueString() != c.want {
				t.Errorf("the image is %s, want %q", got, c.want)
			}
		})
	}
}

func TestRefreshKeepsWhatTheInstanceDoesNotTell(t *testing.T) {
	prior, before := observed(t, imported(), found(), someSettings())
	prior.UserData, prior.UserDataWOVersion = types.StringValue("#cloud-config"), types.Int64Value(2)
	silent := found()
	silent.HealthCheck, silent.CreatedAt = egress.HealthCheck{}, time.Time{}
	silent.KVM.Image, silent.KVM.ImageSHA256, silent.KVM.Pool, silent.KVM.DiskGiB = "", "", "", 0
	m, machine := observed(t, prior, silent, someSettings())
	for what, c := range map[string]struct{ got, want attr.Value }{
		"user-data":           {m.UserData, prior.UserData},
		"user-data's version": {m.UserDataWOVersion, prior.UserDataWOVersion},
		"hash":                {m.ConfigHash, prior.ConfigHash},
		"proxy":               {m.Proxy, prior.Proxy},
		"health check":        {m.HealthCheck, prior.HealthCheck},
		"creation":            {m.CreatedAt, prior.CreatedAt},
		"image":               {machine.Image, before.Image},
		"checksum":            {machine.ImageSHA256, before.ImageSHA256},
		"pool":                {machine.Pool, before.Pool},
		"disk":                {machine.DiskGiB, before.DiskGiB},
		"machine type":        {machine.MachineType, before.MachineType},
	} {
		if !c.got.Equal(c.want) {
			t.Errorf("%s is %s, want %s", what, c.got, c.want)
		}
	}
}

func TestAddressesStaySettledWhileTheMachineHasThem(t *testing.T) {
	addresses := func(texts ...string) (out []netip.Addr) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	list := func(texts ...string) types.List {
		out, diags := types.ListValueFrom(t.Context(), types.StringType, texts)
		if diags.HasError() {
			t.Fatal(diags)
		}
		return out
	}
	for name, c := range map[string]struct {
		prior types.List
		state egress.State
		found []netip.Addr
		want  []netip.Addr
	}{
		"imported":                        {types.ListNull(types.StringType), egress.Running, addresses("192.0.2.1", "192.0.2.2"), addresses("192.0.2.1", "192.0.2.2")},
		"imported, none told":             {types.ListNull(types.StringType), egress.Running, nil, nil},
		"none told":                       {list("192.0.2.2", "192.0.2.1"), egress.Running, nil, addresses("192.0.2.2", "192.0.2.1")},
		"stopped":                         {list("192.0.2.2"), egress.Stopped, nil, nil},
		"started elsewhere":               {list(), egress.Running, addresses("192.0.2.1"), addresses("192.0.2.1")},
		"in another order":                {list("192.0.2.2", "192.0.2.1"), egress.Running, addresses("192.0.2.1", "192.0.2.2"), addresses("192.0.2.2", "192.0.2.1")},
		"one more":                        {list("192.0.2.2"), egress.Running, addresses("192.0.2.1", "192.0.2.2", "192.0.2.3"), addresses("192.0.2.2", "192.0.2.1", "192.0.2.3")},
		"the first is gone":               {list("192.0.2.2", "192.0.2.9"), egress.Running, addresses("192.0.2.1", "192.0.2.9"), addresses("192.0.2.1", "192.0.2.9")},
		"a state that was edited by hand": {list("here"), egress.Running, addresses("192.0.2.1"), addresses("192.0.2.1")},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(c.found)
			got := settledAddresses(t.Context(), c.prior, egress.Instance{State: c.state, Addresses: c.found})
			if !slices.Equal(got, c.want) {
				t.Errorf("the addresses are %v, want %v", got, c.want)
			}
			if !slices.Equal(c.found, before) {
				t.Errorf("the instance's own addresses became %v", c.found)
			}
		})
	}
}

func TestRefreshShowsWhatChangedOutside(t *testing.T) {
	prior, _ := observed(t, imported(), found(), someSettings())
	changed := found()
	changed.State, changed.Addresses, changed.Ready = egress.Stopped, nil, false
	changed.Tags = egress.Tags{"team": "other", "extra": "1"}
	changed.KVM.MemoryMiB, changed.KVM.Interfaces = 1024, nil
	m, machine := observed(t, prior, changed, someSettings())
	for what, c := range map[string]struct{ got, want attr.Value }{
		"state":     {m.State, types.StringValue("stopped")},
		"ready":     {m.Ready, types.BoolValue(false)},
		"address":   {m.Address, types.StringNull()},
		"URL":       {m.HTTPURL, types.StringNull()},
		"addresses": {m.Addresses, types.ListValueMust(types.StringType, []attr.Value{})},
		"memory":    {machine.MemoryMiB, types.Int64Value(1024)},
		"network":   {machine.Network, types.StringNull()},
		// A changed default tag shows in tags_all alone.
		"tags":     {m.Tags, tagsMap(egress.Tags{"extra": "1"})},
		"all tags": {m.TagsAll, tagsMap(changed.Tags)},
	} {
		if !c.got.Equal(c.want) {
			t.Errorf("%s is %s, want %s", what, c.got, c.want)
		}
	}
}

func TestCompleteLeavesNothingUnknownWhateverTheBackendKnows(t *testing.T) {
	machine := kvmModel{
		Host: types.StringValue("hv1"), MachineType: types.StringUnknown(), VCPUs: types.Int64Unknown(), MemoryMiB: types.Int64Unknown(),
		DiskGiB: types.Int64Unknown(), VirtType: types.StringUnknown(), UUID: types.StringUnknown(), MAC: types.StringUnknown(), ImageSHA256: types.StringUnknown(),
		CPUMode: types.StringUnknown(), Firmware: types.StringUnknown(), SecureBoot: types.BoolUnknown(), ImageVolume: types.StringUnknown(),
		Network: types.StringUnknown(), Missing: textsList(nil),
		Interfaces: types.ListValueMust(types.ObjectType{AttrTypes: interfaceTypes}, []attr.Value{interfacesList([]egress.Interface{{Bridge: "br0", MAC: "x"}}).Elements()[0]}),
	}
	var diags diag.Diagnostics
	plan := imported()
	plan.KVM = object(t.Context(), machine, kvmTypes, &diags)
	plan.Name, plan.ID, plan.State, plan.Ready = types.StringValue("ci-egress-1"), types.StringUnknown(), types.StringUnknown(), types.BoolUnknown()
	plan.Address, plan.HTTPURL, plan.ConfigHash, plan.CreatedAt = types.StringUnknown(), types.StringUnknown(), types.StringUnknown(), types.StringUnknown()
	plan.Addresses, plan.TagsAll, plan.HealthCheck = types.ListUnknown(types.StringType), types.MapUnknown(types.StringType), types.ObjectUnknown(healthCheckTypes)
	for name, instance := range map[string]egress.Instance{"all": found(), "the ID alone": {ID: ciID}} {
		m, d := complete(context.Background(), plan, instance)
		diags.Append(d...)
		for what, v := range map[string]attr.Value{
			"kvm": m.KVM, "id": m.ID, "state": m.State, "ready": m.Ready, "addresses": m.Addresses, "address": m.Address, "http_url": m.HTTPURL,
			"config_hash": m.ConfigHash, "created_at": m.CreatedAt, "tags_all": m.TagsAll, "health_check": m.HealthCheck,
		} {
			if !isFullyKnown(t.Context(), v) {
				t.Errorf("%s: %s is still unknown: %s", name, what, v)
			}
		}
		if m.ID.ValueString() != ciID.String() {
			t.Errorf("%s: the ID is %s", name, m.ID)
		}
	}
	if diags.HasError() {
		t.Error(diags)
	}
}
