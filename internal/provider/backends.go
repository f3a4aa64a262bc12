package provider

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
)

// backends gives the backend for an instance. Each is made when it is first
// asked for.
type backends struct {
	hosts  table[connection.Host]
	byKind map[egress.Kind]func() egress.Backend
}

// newBackends registers the backends, one line each; those in fixed take their
// place when there are any.
func newBackends(hosts table[connection.Host], storage storageSettings, fixed map[egress.Kind]egress.Backend) *backends {
	b := &backends{hosts: hosts, byKind: map[egress.Kind]func() egress.Backend{
		egress.KVM: sync.OnceValue(func() egress.Backend {
			return kvm.New(kvm.Config{Hosts: hosts.known(), StartPool: storage.startPool, PruneImages: storage.pruneImages, Log: debugLog})
		}),
	}}
	for kind, backend := range fixed {
		b.byKind[kind] = func() egress.Backend { return backend }
	}
	return b
}

// of gives the backend to ask about the instance, or says why it cannot be
// asked yet.
func (b *backends) of(id egress.ProviderID) (egress.Backend, error) {
	backend, ok := b.byKind[id.Backend]
	if !ok {
		return nil, &egress.Fault{
			Kind:   egress.ErrPermanent,
			Doing:  fmt.Sprintf("choosing the backend of instance %s", id),
			Cause:  fmt.Errorf("this version of the provider has no backend %q", id.Backend),
			Remedy: "Use an instance ID of the form kvm://HOST/NAME.",
		}
	}
	if id.Backend != egress.KVM {
		return backend(), nil
	}
	switch _, presence := b.hosts.find(id.Location); presence {
	case pending:
		return nil, &egress.Fault{
			Kind:  egress.ErrUnreachable,
			Doing: fmt.Sprintf("looking for instance %s", id.Name),
			Host:  id.Location,
			Cause: fmt.Errorf("the settings of host %q in the provider block depend on something that is not created yet", id.Location),
			Remedy: "Create what they depend on first (terraform apply -target=ADDRESS), or plan with -refresh=false " +
				"so that the host need not be asked.",
		}
	case absent:
		return nil, &egress.Fault{
			Kind:  egress.ErrPermanent,
			Doing: fmt.Sprintf("looking for instance %s", id.Name),
			Cause: fmt.Errorf("kvm.hosts in the provider block has no host %q; it has: %s", id.Location, b.hosts.names()),
			Remedy: "Add the host to kvm.hosts in the provider block, or back to it, under the name that the instance's ID has; or correct the ID of an import. " +
				"If a host is gone for good, terraform state rm ADDRESS makes Terraform forget an instance on it.",
			Attribute: "kvm.host",
		}
	case present:
	}
	return backend(), nil
}

// debugLog writes a backend's log lines at level DEBUG.
func debugLog(ctx context.Context, message string, fields map[string]any) {
	tflog.Debug(ctx, message, fields)
}
