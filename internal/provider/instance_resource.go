package provider

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

var (
	_ resource.Resource                   = (*instanceResource)(nil)
	_ resource.ResourceWithConfigure      = (*instanceResource)(nil)
	_ resource.ResourceWithValidateConfig = (*instanceResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*instanceResource)(nil)
	_ resource.ResourceWithImportState    = (*instanceResource)(nil)
)

// The time limits of operations, where timeouts says nothing else.
const (
	defaultCreateTimeout = 15 * time.Minute
	defaultReadTimeout   = 2 * time.Minute
	defaultUpdateTimeout = 15 * time.Minute
	defaultDeleteTimeout = 5 * time.Minute
)

// refreshProbeTimeout bounds the question to the proxy during a refresh, which
// must not hang on one that swallows packets.
const refreshProbeTimeout = 3 * time.Second

type instanceResource struct{ settings *settings }

func newInstanceResource() resource.Resource { return &instanceResource{} }

func (r *instanceResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_instance"
}

func (r *instanceResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = instanceSchema(ctx)
}

func (r *instanceResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	if req.ProviderData == nil {
		return // validation comes before the provider is configured
	}
	s, ok := req.ProviderData.(*settings)
	if !ok {
		resp.Diagnostics.AddError("Provider not configured", fmt.Sprintf("The resource was given %T as the provider's settings.", req.ProviderData))
		return
	}
	r.settings = s
}

func (r *instanceResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var config instanceModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(validateInstance(ctx, config)...)
	}
}

func (r *instanceResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		resp.Diagnostics.Append(refuseRemoval(ctx, req.State)...)
		return
	}
	p := planning{settings: r.settings}
	resp.Diagnostics.Append(req.Config.Get(ctx, &p.config)...)
	resp.Diagnostics.Append(req.Plan.Get(ctx, &p.plan)...)
	if !req.State.Raw.IsNull() {
		p.prior = &instanceModel{}
		resp.Diagnostics.Append(req.State.Get(ctx, p.prior)...)
	}
	if resp.Diagnostics.HasError() {
		return
	}
	p.decide(ctx)
	resp.Diagnostics.Append(p.diags...)
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &p.plan)...)
	resp.RequiresReplace = append(resp.RequiresReplace, p.replace...)
}

func (r *instanceResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan, config instanceModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	limit, diags := plan.Timeouts.Create(ctx, defaultCreateTimeout)
	resp.Diagnostics.Append(diags...)
	host := machineOf(ctx, plan.KVM, &resp.Diagnostics).Host.ValueString()
	id := egress.ProviderID{Backend: egress.KVM, Location: host, Name: plan.Name.ValueString()}
	wanted, diags := spec(ctx, id, plan, config, r.settings)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}

	var instance egress.Instance
	failed := r.run(ctx, "create", id, limit, func(ctx context.Context, backend egress.Backend) (err error) {
		instance, err = backend.Create(ctx, wanted)
		return err
	})
	exists := failed == nil || !instance.ID.IsZero()
	if exists {
		state, diags := complete(ctx, plan, instance)
		resp.Diagnostics.Append(diags...)
		if failed != nil {
			// Nobody checks this state against the plan, so it can be honest.
			state.State, state.Ready = textOrNull(string(instance.State)), types.BoolValue(instance.Ready)
			state.Protected = types.BoolValue(false) // from its own replacement
		}
		resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
	}
	if failed != nil {
		failed.kept = exists
		resp.Diagnostics.Append(diagnose(*failed))
	}
}

func (r *instanceResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var prior instanceModel
	resp.Diagnostics.Append(req.State.Get(ctx, &prior)...)
	if resp.Diagnostics.HasError() {
		return
	}
	id, ok := parseID(prior.ID, &resp.Diagnostics)
	limit, diags := prior.Timeouts.Read(ctx, defaultReadTimeout)
	resp.Diagnostics.Append(diags...)
	if !ok || resp.Diagnostics.HasError() {
		return
	}

	var instance egress.Instance
	failed := r.run(ctx, "read", id, limit, func(ctx context.Context, backend egress.Backend) (err error) {
		instance, err = backend.Get(ctx, id)
		return err
	})
	switch {
	case failed != nil && errors.Is(failed.err, egress.ErrNotFound):
		resp.State.RemoveResource(ctx)
		return
	case failed != nil:
		resp.Diagnostics.Append(diagnose(*failed))
		return
	case another(ctx, prior, instance, &resp.Diagnostics):
		resp.State.RemoveResource(ctx)
		return
	case instance.Unfinished && prior.Name.IsNull():
		resp.Diagnostics.AddError(fmt.Sprintf("Unable to import egress proxy %q", id.Name),
			fmt.Sprintf("The creation of %s was begun and not completed. Do not import it: apply the configuration without the import, and it is made anew on the image that is there already.", id))
		return
	case instance.Unfinished:
		// Its values are those that the failed creation saved.
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("state"), textOrNull(string(instance.State)))...)
		return
	}
	instance.Addresses = settledAddresses(ctx, prior.Addresses, instance)
	instance.Ready = r.checkReady(ctx, instance, &resp.Diagnostics)
	state, diags := observe(ctx, prior, instance, r.settings)
	resp.Diagnostics.Append(diags...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
	}
}

func (r *instanceResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, config, prior instanceModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &prior)...)
	if resp.Diagnostics.HasError() {
		return
	}
	id, ok := parseID(prior.ID, &resp.Diagnostics)
	limit, diags := plan.Timeouts.Update(ctx, defaultUpdateTimeout)
	resp.Diagnostics.Append(diags...)
	wanted, diags := spec(ctx, id, plan, config, r.settings)
	resp.Diagnostics.Append(diags...)
	wanted.UID = uidOf(ctx, prior, &resp.Diagnostics)
	if !ok || resp.Diagnostics.HasError() {
		return
	}

	var instance egress.Instance
	failed := r.run(ctx, "update", id, limit, func(ctx context.Context, backend egress.Backend) (err error) {
		instance, err = backend.Update(ctx, id, wanted)
		return err
	})
	if failed != nil {
		// The state stays as it was, so that the next plan has the change
		// again.
		resp.Diagnostics.Append(diagnose(*failed))
		return
	}
	state, diags := complete(ctx, plan, instance)
	resp.Diagnostics.Append(diags...)
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
}

func (r *instanceResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state instanceModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(refuseRemoval(ctx, req.State)...) // of a replacement nobody but Terraform knew
	id, ok := parseID(state.ID, &resp.Diagnostics)
	limit, diags := state.Timeouts.Delete(ctx, defaultDeleteTimeout)
	resp.Diagnostics.Append(diags...)
	if !ok || resp.Diagnostics.HasError() {
		return
	}
	uid := uidOf(ctx, state, &resp.Diagnostics)
	failed := r.run(ctx, "delete", id, limit, func(ctx context.Context, backend egress.Backend) error {
		return backend.Delete(ctx, id, uid)
	})
	if failed != nil {
		resp.Diagnostics.Append(diagnose(*failed))
	}
}

func (r *instanceResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	id, err := egress.ParseProviderID(req.ID)
	if err == nil {
		_, err = r.settings.backends.of(id)
	}
	if err != nil {
		detail, _ := explain(err)
		resp.Diagnostics.AddError(fmt.Sprintf("Unable to import egress proxy %q", req.ID), detail)
		return
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("id"), id.String())...)
}

// run does one thing to an instance within a time limit, and tells how it
// failed, if it did.
func (r *instanceResource) run(parent context.Context, verb string, id egress.ProviderID, limit time.Duration, do func(context.Context, egress.Backend) error) *failure {
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()
	fields := map[string]any{"operation": verb, "instance": id.String()}
	tflog.Debug(ctx, "operation on instance begins", fields)
	began := time.Now()
	backend, err := r.settings.backends.of(id)
	if err == nil {
		err = do(ctx, backend)
	}
	fields["milliseconds"], fields["ok"] = time.Since(began).Milliseconds(), err == nil
	tflog.Debug(ctx, "operation on instance ended", fields)
	if err == nil {
		return nil
	}
	return &failure{
		verb: verb, name: id.Name, limit: limit, err: err,
		interrupted: parent.Err() != nil,
		timedOut:    parent.Err() == nil && errors.Is(ctx.Err(), context.DeadlineExceeded),
	}
}

// checkReady asks a running proxy what needs no password. One that does not
// answer is a warning, since nothing that a plan could change is known to be
// wrong.
func (r *instanceResource) checkReady(ctx context.Context, instance egress.Instance, diags *diag.Diagnostics) bool {
	if instance.State != egress.Running || len(instance.Addresses) == 0 {
		return false
	}
	if instance.Proxy == nil || instance.HealthCheck.From != egress.FromClient {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, refreshProbeTimeout)
	defer cancel()
	at := netip.AddrPortFrom(instance.Addresses[0], uint16(instance.Proxy.HTTPPort))
	if err := r.settings.probe(ctx, at); err != nil {
		diags.AddWarning(fmt.Sprintf("Egress proxy %q does not answer", instance.ID.Name),
			sentence(err.Error())+" Its machine runs. The attribute ready is false until the proxy answers again; nothing is planned because of it.")
		return false
	}
	return true
}

// refuseRemoval keeps a protected instance from being destroyed.
func refuseRemoval(ctx context.Context, state tfsdk.State) diag.Diagnostics {
	var m instanceModel
	diags := state.Get(ctx, &m)
	if m.Protected.ValueBool() {
		diags.AddAttributeError(path.Root("deletion_protection"), protectedSummary(m.Name),
			"The instance is protected from being destroyed. Set deletion_protection to false and apply that first; one that was tainted by hand takes a terraform untaint before that.")
	}
	return diags
}

// uidOf gives the identity that the state has of an instance.
func uidOf(ctx context.Context, m instanceModel, diags *diag.Diagnostics) string {
	return machineOf(ctx, m.KVM, diags).UUID.ValueString()
}

// another tells whether what was found under an instance's name is another
// machine than the state's, which is gone then.
func another(ctx context.Context, prior instanceModel, found egress.Instance, diags *diag.Diagnostics) bool {
	uid := uidOf(ctx, prior, diags)
	if uid == "" || found.UID == "" || uid == found.UID {
		return false
	}
	diags.AddWarning(fmt.Sprintf("Egress proxy %q is gone, and another machine has its name", found.ID.Name),
		fmt.Sprintf("The machine of the state had the UUID %s, the one that %s names now has %s. The plan makes a new instance, which fails for as long as the other one is there: "+
			"rename or remove that machine, give the instance another name, or adopt the other one with terraform import.", uid, found.ID, found.UID))
	return true
}

func parseID(text types.String, diags *diag.Diagnostics) (egress.ProviderID, bool) {
	id, err := egress.ParseProviderID(text.ValueString())
	if err != nil {
		diags.AddAttributeError(path.Root("id"), "Invalid instance ID in the state", sentence(err.Error()))
		return egress.ProviderID{}, false
	}
	return id, true
}
