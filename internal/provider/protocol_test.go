package provider

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// unknown stands for a value that is known only after apply.
var unknown = new(struct{ string })

// tree is a configuration as nested maps, lists and plain values; what is not
// in it is null.
type tree map[string]any

// with gives a copy with another value at a dotted path; nil takes it out.
func (t tree) with(dotted string, value any) tree {
	out := maps.Clone(t)
	name, rest, more := strings.Cut(dotted, ".")
	switch {
	case more:
		inner, _ := out[name].(tree)
		out[name] = inner.with(rest, value)
	case value == nil:
		delete(out, name)
	default:
		if out == nil {
			out = tree{}
		}
		out[name] = value
	}
	return out
}

// paths lists every place of the tree, inner ones included.
func (t tree) paths() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(t)) {
		out = append(out, name)
		if inner, ok := t[name].(tree); ok {
			for _, p := range inner.paths() {
				out = append(out, name+"."+p)
			}
		}
	}
	return out
}

func value(t *testing.T, typ tftypes.Type, v any) tftypes.Value {
	t.Helper()
	if v == unknown {
		return tftypes.NewValue(typ, tftypes.UnknownValue)
	}
	switch v := v.(type) {
	case tree:
		if v == nil {
			return tftypes.NewValue(typ, nil)
		}
		values := map[string]tftypes.Value{}
		if object, ok := typ.(tftypes.Object); ok {
			for name := range v {
				if object.AttributeTypes[name] == nil {
					t.Fatalf("there is no attribute %s", name)
				}
			}
			for name, inner := range object.AttributeTypes {
				values[name] = value(t, inner, v[name])
			}
		} else {
			for name := range v {
				values[name] = value(t, typ.(tftypes.Map).ElementType, v[name])
			}
		}
		return tftypes.NewValue(typ, values)
	case []any:
		if list, ok := typ.(tftypes.List); ok {
			values := make([]tftypes.Value, len(v))
			for i := range v {
				values[i] = value(t, list.ElementType, v[i])
			}
			return tftypes.NewValue(typ, values)
		}
		values := make([]tftypes.Value, len(v))
		for i := range v {
			values[i] = value(t, typ.(tftypes.Set).ElementType, v[i])
		}
		return tftypes.NewValue(typ, values)
	}
	return tftypes.NewValue(typ, v)
}

// client speaks to the provider as Terraform does, without a Terraform.
type client struct {
	t      *testing.T
	server tfprotov6.ProviderServer
	schema *tfprotov6.GetProviderSchemaResponse
}

func newClient(t *testing.T, backend egress.Backend) client {
	t.Helper()
	server, err := providerserver.NewProtocol6WithError(New("test", WithBackends(map[egress.Kind]egress.Backend{egress.KVM: backend}))())()
	if err != nil {
		t.Fatal(err)
	}
	schema, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil || len(schema.Diagnostics) != 0 {
		t.Fatal(err, describe(schema.Diagnostics))
	}
	return client{t, server, schema}
}

const resourceType = "egressproxy_instance"

func (c client) resource() *tfprotov6.Schema { return c.schema.ResourceSchemas[resourceType] }

func (c client) pack(v tftypes.Value) *tfprotov6.DynamicValue {
	c.t.Helper()
	packed, err := tfprotov6.NewDynamicValue(v.Type(), v)
	if err != nil {
		c.t.Fatal(err)
	}
	return &packed
}

func (c client) unpack(v *tfprotov6.DynamicValue) tftypes.Value {
	c.t.Helper()
	out, err := v.Unmarshal(c.resource().ValueType())
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// configure gives the provider its configuration, and what it says about it.
func (c client) configure(block tree) []*tfprotov6.Diagnostic {
	c.t.Helper()
	config := c.pack(value(c.t, c.schema.Provider.ValueType(), block))
	validated, err := c.server.ValidateProviderConfig(c.t.Context(), &tfprotov6.ValidateProviderConfigRequest{Config: config})
	if err != nil {
		c.t.Fatal(err)
	}
	configured, err := c.server.ConfigureProvider(c.t.Context(), &tfprotov6.ConfigureProviderRequest{Config: config})
	if err != nil {
		c.t.Fatal(err)
	}
	return append(validated.Diagnostics, configured.Diagnostics...)
}

func (c client) validate(config tree) []*tfprotov6.Diagnostic {
	c.t.Helper()
	resp, err := c.server.ValidateResourceConfig(c.t.Context(), &tfprotov6.ValidateResourceConfigRequest{
		TypeName: resourceType, Config: c.pack(value(c.t, c.resource().ValueType(), config)),
		ClientCapabilities: &tfprotov6.ValidateResourceConfigClientCapabilities{WriteOnlyAttributesAllowed: true},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.Diagnostics
}

// plan plans from a prior state, which is null for a creation.
func (c client) plan(config tree, prior tftypes.Value) *tfprotov6.PlanResourceChangeResponse {
	c.t.Helper()
	configured := value(c.t, c.resource().ValueType(), config)
	resp, err := c.server.PlanResourceChange(c.t.Context(), &tfprotov6.PlanResourceChangeRequest{
		TypeName: resourceType, Config: c.pack(configured), PriorState: c.pack(prior),
		ProposedNewState: c.pack(propose(c.t, c.resource().Block.Attributes, configured, prior)),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

func (c client) nothing() tftypes.Value { return tftypes.NewValue(c.resource().ValueType(), nil) }

// create plans and applies a creation.
func (c client) create(config tree) tftypes.Value {
	c.t.Helper()
	planned := c.plan(config, c.nothing())
	if len(planned.Diagnostics) != 0 {
		c.t.Fatal(describe(planned.Diagnostics))
	}
	resp, err := c.server.ApplyResourceChange(c.t.Context(), &tfprotov6.ApplyResourceChangeRequest{
		TypeName: resourceType, Config: c.pack(value(c.t, c.resource().ValueType(), config)),
		PriorState: c.pack(c.nothing()), PlannedState: planned.PlannedState,
	})
	if err != nil || len(resp.Diagnostics) != 0 {
		c.t.Fatal(err, describe(resp.Diagnostics))
	}
	return c.unpack(resp.NewState)
}

// propose does what Terraform does before it asks for a plan: computed values
// that are not configured stay as they were.
func propose(t *testing.T, attributes []*tfprotov6.SchemaAttribute, config, prior tftypes.Value) tftypes.Value {
	t.Helper()
	if config.IsNull() || !config.IsKnown() || prior.IsNull() {
		return config
	}
	was, out := members(t, prior), members(t, config)
	for _, a := range attributes {
		switch {
		case a.Computed && out[a.Name].IsNull():
			out[a.Name] = was[a.Name]
		case a.NestedType != nil && a.NestedType.Nesting == tfprotov6.SchemaObjectNestingModeSingle:
			out[a.Name] = propose(t, a.NestedType.Attributes, out[a.Name], was[a.Name])
		case a.NestedType != nil && a.NestedType.Nesting == tfprotov6.SchemaObjectNestingModeMap && out[a.Name].IsKnown() && !out[a.Name].IsNull() && !was[a.Name].IsNull():
			elements, before := members(t, out[a.Name]), members(t, was[a.Name])
			for key, element := range elements {
				if old, ok := before[key]; ok {
					elements[key] = propose(t, a.NestedType.Attributes, element, old)
				}
			}
			out[a.Name] = tftypes.NewValue(out[a.Name].Type(), elements)
		}
	}
	return tftypes.NewValue(config.Type(), out)
}

func members(t *testing.T, v tftypes.Value) map[string]tftypes.Value {
	t.Helper()
	var out map[string]tftypes.Value
	if err := v.As(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// at gives the value at a dotted path of a state or plan.
func at(t *testing.T, v tftypes.Value, dotted string) tftypes.Value {
	t.Helper()
	for step := range strings.SplitSeq(dotted, ".") {
		v = members(t, v)[step]
	}
	return v
}

func describe(diagnostics []*tfprotov6.Diagnostic) string {
	var lines []string
	for _, d := range diagnostics {
		lines = append(lines, d.Severity.String()+" at "+dotted(d.Attribute)+": "+d.Summary+": "+d.Detail)
	}
	return strings.Join(lines, "\n")
}

// dotted writes an attribute path as an error text would.
func dotted(path *tftypes.AttributePath) string {
	var steps []string
	for _, step := range path.Steps() {
		switch step := step.(type) {
		case tftypes.AttributeName:
			steps = append(steps, string(step))
		case tftypes.ElementKeyString:
			steps = append(steps, string(step))
		case tftypes.ElementKeyInt:
			steps = append(steps, strconv.FormatInt(int64(step), 10))
		case tftypes.ElementKeyValue:
			steps = append(steps, "element")
		}
	}
	return strings.Join(steps, ".")
}

func errorsOf(diagnostics []*tfprotov6.Diagnostic) []*tfprotov6.Diagnostic {
	return slices.DeleteFunc(slices.Clone(diagnostics), func(d *tfprotov6.Diagnostic) bool {
		return d.Severity != tfprotov6.DiagnosticSeverityError
	})
}

// untouchable is a backend that fails the test when it is asked.
type untouchable struct{ t *testing.T }

func (u untouchable) Create(context.Context, egress.Spec) (egress.Instance, error) {
	u.t.Error("the backend was asked to create")
	return egress.Instance{}, nil
}

func (u untouchable) Get(context.Context, egress.ProviderID) (egress.Instance, error) {
	u.t.Error("the backend was asked to get")
	return egress.Instance{}, nil
}

func (u untouchable) Update(context.Context, egress.ProviderID, egress.Spec) (egress.Instance, error) {
	u.t.Error("the backend was asked to update")
	return egress.Instance{}, nil
}

func (u untouchable) Delete(context.Context, egress.ProviderID, string) error {
	u.t.Error("the backend was asked to delete")
	return nil
}

func (u untouchable) List(context.Context, egress.Tags) ([]egress.Instance, error) {
	u.t.Error("the backend was asked to list")
	return nil, nil
}
