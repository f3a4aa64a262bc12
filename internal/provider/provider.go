// Package provider is Terraform's face of the module: schemas, validation,
// plans, and the translation between Terraform's values and the vocabulary of
// package egress. It alone imports the Terraform plugin libraries, and knows
// of a backend no more than its schema.
package provider

import (
	"context"
	"net/netip"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/probe"
)

var (
	_ provider.Provider                   = (*egressProvider)(nil)
	_ provider.ProviderWithValidateConfig = (*egressProvider)(nil)
)

// Option changes how the provider reaches the world; for tests.
type Option func(*egressProvider)

// WithBackends makes the provider use these backends in place of those its
// configuration describes.
func WithBackends(backends map[egress.Kind]egress.Backend) Option {
	return func(p *egressProvider) { p.backends = backends }
}

// WithProbe makes refresh ask probe whether the proxy at an address answers,
// in place of connecting to it.
func WithProbe(probe func(context.Context, netip.AddrPort) error) Option {
	return func(p *egressProvider) { p.probe = probe }
}

// New gives the constructor of the provider in the form the plugin server
// wants. version is the provider's own, as Terraform shows it.
func New(version string, options ...Option) func() provider.Provider {
	return func() provider.Provider {
		p := &egressProvider{version: version, probe: probeWithoutCredentials}
		for _, option := range options {
			option(p)
		}
		return p
	}
}

type egressProvider struct {
	version  string
	backends map[egress.Kind]egress.Backend
	probe    func(context.Context, netip.AddrPort) error
}

func (p *egressProvider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName = "egressproxy"
	resp.Version = p.version
}

func (p *egressProvider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	resp.Schema = providerSchema()
}

func (p *egressProvider) ValidateConfig(ctx context.Context, req provider.ValidateConfigRequest, resp *provider.ValidateConfigResponse) {
	var model providerModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(validateProvider(ctx, model)...)
	}
}

// Configure connects to nothing and accepts values that are not known yet: a
// host may be made by the very run that plans an instance on it.
func (p *egressProvider) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var model providerModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	s, diags := readSettings(ctx, model)
	resp.Diagnostics.Append(diags...)
	s.probe = p.probe
	s.backends = newBackends(s.hosts, s.storage, p.backends)
	resp.ResourceData = s
}

func (p *egressProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{newInstanceResource}
}

func (p *egressProvider) DataSources(context.Context) []func() datasource.DataSource { return nil }

// probeWithoutCredentials asks the proxy at an address for what it must refuse
// to someone without a password.
func probeWithoutCredentials(ctx context.Context, proxy netip.AddrPort) error {
	return probe.Probe{Proxy: proxy}.RunWithoutCredentials(ctx)
}
