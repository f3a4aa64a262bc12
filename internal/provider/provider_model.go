package provider

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
)

type providerModel struct {
	KVM         types.Object `tfsdk:"kvm"`
	DefaultTags types.Map    `tfsdk:"default_tags"`
}

type providerKVMModel struct {
	Hosts        types.Map `tfsdk:"hosts"`
	MachineTypes types.Map `tfsdk:"machine_types"`
	Images       types.Map `tfsdk:"images"`

	StartPool   types.Bool `tfsdk:"start_pool"`
	PruneImages types.Bool `tfsdk:"prune_images"`
}

type machineTypeModel struct {
	VCPUs     types.Int64 `tfsdk:"vcpus"`
	MemoryMiB types.Int64 `tfsdk:"memory_mib"`
	DiskGiB   types.Int64 `tfsdk:"disk_gib"`
}

// settings is what the provider block says, as far as it is known.
type settings struct {
	hosts        table[connection.Host]
	machineTypes table[machineType]
	images       table[egress.Image]
	storage      storageSettings
	defaultTags  types.Map
	backends     *backends
	probe        func(context.Context, netip.AddrPort) error
}

// storageSettings is what may be done to the hosts' storage.
type storageSettings struct{ startPool, pruneImages bool }

// machineType is a named size of machines.
type machineType struct{ VCPUs, MemoryMiB, DiskGiB int64 }

// table is a map of the provider block, of which all or some may not be known
// before apply.
type table[T any] struct {
	pending bool // the map itself is not known
	entries map[string]entry[T]
}

type entry[T any] struct {
	// value holds what is known of the entry; of a pending one, what is not
	// known is the zero value, which no valid entry has there.
	value   T
	pending bool
}

// presence says whether a table has an entry.
type presence int

const (
	absent  presence = iota
	pending          // there is or may be one, but not all of it is known yet
	present
)

// find gives an entry, as far as it is known.
func (t table[T]) find(name string) (T, presence) {
	e, ok := t.entries[name]
	switch {
	case ok && !e.pending:
		return e.value, present
	case ok || t.pending:
		return e.value, pending
	}
	return e.value, absent
}

// names lists the table's entries for a message.
func (t table[T]) names() string {
	if len(t.entries) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(t.entries)), ", ")
}

// only gives the name of the one entry that, as far as it is known, matches, or
// "" when none or several do.
func (t table[T]) only(matches func(T) bool) string {
	found := ""
	for name, e := range t.entries {
		if !matches(e.value) {
			continue
		}
		if found != "" {
			return ""
		}
		found = name
	}
	return found
}

// known gives the entries that are known in full.
func (t table[T]) known() map[string]T {
	out := make(map[string]T, len(t.entries))
	for name, e := range t.entries {
		if !e.pending {
			out[name] = e.value
		}
	}
	return out
}

// readSettings takes the provider block apart.
func readSettings(ctx context.Context, model providerModel) (*settings, diag.Diagnostics) {
	var diags diag.Diagnostics
	s := &settings{defaultTags: model.DefaultTags}
	switch {
	case model.KVM.IsUnknown():
		s.hosts.pending, s.machineTypes.pending, s.images.pending = true, true, true
	case !model.KVM.IsNull():
		var kvm providerKVMModel
		diags.Append(model.KVM.As(ctx, &kvm, basetypes.ObjectAsOptions{})...)
		s.hosts = readTable(ctx, kvm.Hosts, readHost, &diags)
		s.machineTypes = readTable(ctx, kvm.MachineTypes, readMachineType, &diags)
		s.images = readTable(ctx, kvm.Images, readImage, &diags)
		s.storage = storageSettings{startPool: kvm.StartPool.ValueBool(), pruneImages: kvm.PruneImages.ValueBool()}
	}
	return s, diags
}

// readTable reads a map of objects M entry by entry. read takes an unknown value
// for its zero value.
func readTable[M, T any](ctx context.Context, m types.Map, read func(context.Context, string, M) (T, diag.Diagnostics), diags *diag.Diagnostics) table[T] {
	t := table[T]{pending: m.IsUnknown(), entries: make(map[string]entry[T], len(m.Elements()))}
	for name, value := range m.Elements() {
		object, ok := value.(types.Object)
		if !ok || object.IsNull() {
			continue
		}
		value, d := read(ctx, name, as[M](ctx, object, diags))
		diags.Append(d...)
		t.entries[name] = entry[T]{value: value, pending: !isFullyKnown(ctx, object)}
	}
	return t
}

func readMachineType(_ context.Context, _ string, m machineTypeModel) (machineType, diag.Diagnostics) {
	return machineType{VCPUs: m.VCPUs.ValueInt64(), MemoryMiB: m.MemoryMiB.ValueInt64(), DiskGiB: m.DiskGiB.ValueInt64()}, nil
}

// validateProvider checks what takes more than one attribute to see.
func validateProvider(ctx context.Context, model providerModel) diag.Diagnostics {
	s, diags := readSettings(ctx, model)
	if diags.HasError() {
		return diags
	}
	diags.Append(validateImages(s.images)...)
	hosts := s.hosts.known()
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		if err := connection.Validate(hosts[name]); err != nil {
			diags.Append(diagnoseHost(name, err))
		}
		diags.Append(cautionHost(name, hosts[name])...)
	}
	return diags
}
