package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
)

func TestDiagnoseSaysWhatWasDoneWhereAndWhatToDo(t *testing.T) {
	fault := &egress.Fault{
		Kind: egress.ErrPermanent, Doing: "starting domain ci", Host: "hv1", Cause: errors.New("out of memory"),
		Remedy: "Choose a smaller one.", Attribute: "kvm.memory_mib", Console: []string{"line one", "line two"},
	}
	for name, c := range map[string]struct {
		failure failure
		at      path.Path
		detail  string
	}{
		"fault": {
			failure{verb: "create", name: "ci", err: fault}, path.Root("kvm").AtName("memory_mib"),
			"While starting domain ci on host hv1: out of memory.\n\nThe guest's console ended with:\n  line one\n  line two\n\nChoose a smaller one.",
		},
		"fault within": {
			failure{verb: "update", name: "ci", err: fmt.Errorf("second try: %w", &egress.Fault{Doing: "storing tags", Kind: egress.ErrTransient})}, path.Empty(),
			"Second try: storing tags: temporary failure.\n\nWhile storing tags: temporary failure.",
		},
		"plain error": {
			failure{verb: "delete", name: "ci", err: errors.New("no route to host")}, path.Empty(),
			"No route to host.",
		},
		"fault of no kind, its caller gave up": {
			failure{verb: "create", name: "ci", err: &egress.Fault{Doing: "waiting for instance ci", Host: "hv1", Cause: context.Canceled}, interrupted: true, kept: true}, path.Empty(),
			"While waiting for instance ci on host hv1: context canceled.\n\nThe operation was interrupted. " +
				"What exists of the instance is kept in the state, marked as tainted: the next apply replaces it, and destroy removes it.",
		},
		"fault of no kind and no cause": {
			failure{verb: "read", name: "ci", err: &egress.Fault{Doing: "reading domain ci", Host: "hv1"}}, path.Empty(),
			"While reading domain ci on host hv1.",
		},
		"several errors": {
			failure{verb: "create", name: "ci", err: errors.Join(
				errors.Join(errors.New("first thing"), fault),
				fmt.Errorf("cleaning up: %w", &egress.Fault{Doing: "deleting volume a", Cause: errors.New("in use"), Remedy: "Delete it by hand.", Attribute: "kvm.pool"}),
				&egress.Fault{Doing: "closing the connection", Cause: context.Canceled},
			)}, path.Root("kvm").AtName("memory_mib"),
			"First thing.\nWhile starting domain ci on host hv1: out of memory.\nCleaning up: deleting volume a: in use.\nWhile closing the connection: context canceled." +
				"\n\nThe guest's console ended with:\n  line one\n  line two\n\nChoose a smaller one.\n\nWhile deleting volume a: in use.\n\nDelete it by hand.",
		},
		"fault of several causes": {
			failure{verb: "delete", name: "ci", err: &egress.Fault{Doing: "removing ci", Host: "hv1", Cause: errors.Join(errors.New("disk in use"), errors.New("pool gone")), Remedy: "Try again."}}, path.Empty(),
			"While removing ci on host hv1: disk in use.\nPool gone.\n\nTry again.",
		},
		"error of several that says more": {
			failure{verb: "delete", name: "ci", err: fmt.Errorf("both %w and %w", errors.New("one"), errors.New("two"))}, path.Empty(),
			"Both one and two.",
		},
		"time limit of a creation": {
			failure{verb: "create", name: "ci", err: context.DeadlineExceeded, timedOut: true, limit: 90 * time.Second, kept: true}, path.Empty(),
			"Context deadline exceeded.\n\nThe time limit of 1m30s was reached. Raise timeouts.create if it only needs longer. " +
				"What exists of the instance is kept in the state, marked as tainted: the next apply replaces it, and destroy removes it.",
		},
		"interrupted before anything was made": {
			failure{verb: "create", name: "ci", err: context.Canceled, interrupted: true}, path.Empty(),
			"Context canceled.\n\nThe operation was interrupted. Nothing of the instance was made.",
		},
		"time limit of a removal": {
			failure{verb: "delete", name: "ci", err: context.DeadlineExceeded, timedOut: true, limit: time.Minute}, path.Empty(),
			"Context deadline exceeded.\n\nThe time limit of 1m0s was reached. Raise timeouts.delete if it only needs longer. The state is as it was: run the same command again.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := diagnose(c.failure)
			if want := fmt.Sprintf("Unable to %s egress proxy %q", c.failure.verb, "ci"); d.Summary() != want {
				t.Errorf("summary %q, want %q", d.Summary(), want)
			}
			if d.Detail() != c.detail {
				t.Errorf("detail:\n%s\nwant:\n%s", d.Detail(), c.detail)
			}
			at := path.Empty()
			if located, ok := d.(diag.DiagnosticWithPath); ok {
				at = located.Path()
			}
			if !at.Equal(c.at) {
				t.Errorf("at %s, want %s", at, c.at)
			}
		})
	}
}

func TestAttributePathFindsUserNamesWithDots(t *testing.T) {
	clients := path.Root("proxy").AtName("clients")
	for dotted, want := range map[string]path.Path{
		"name":                            path.Root("name"),
		"kvm.image":                       path.Root("kvm").AtName("image"),
		"proxy.policy.allow_ports":        path.Root("proxy").AtName("policy").AtName("allow_ports"),
		"proxy.clients":                   clients,
		"proxy.clients.ci":                clients.AtMapKey("ci"),
		"proxy.clients.a.b":               clients.AtMapKey("a.b"),
		"proxy.clients.a.b.allow_domains": clients.AtMapKey("a.b").AtName("allow_domains"),
		"proxy.clients.ci.password_wo":    clients.AtMapKey("ci").AtName("password_wo"),
		"":                                path.Empty(),
	} {
		if got := attributePath(dotted); !got.Equal(want) {
			t.Errorf("%q is read as %s, want %s", dotted, got, want)
		}
	}
}

func TestAHostTakenOutOfTheProviderBlockIsNamedWithWhatToDo(t *testing.T) {
	backend := newFakeBackend()
	p := newClient(t, backend)
	p.configure(providerTree())
	config := instanceTree().with("health_check", tree{"from": "none"})
	state := p.create(config)
	for name, block := range map[string]tree{
		"renamed":   providerTree().with("kvm.hosts.hv1", nil).with("kvm.hosts.renamed", tree{"uri": "qemu:///system"}),
		"taken out": providerTree().with("kvm.hosts.hv1", nil),
	} {
		t.Run(name, func(t *testing.T) {
			if d := p.configure(block); len(d) != 0 {
				t.Fatal(describe(d))
			}
			asked := len(backend.calls)
			read, err := p.server.ReadResource(t.Context(), &tfprotov6.ReadResourceRequest{TypeName: resourceType, CurrentState: p.pack(state)})
			if err != nil {
				t.Fatal(err)
			}
			expectOne(t, read.Diagnostics, "kvm.host", []string{`no host "hv1"`, "hv2", "kvm.hosts", "back", "terraform state rm"})
			if !p.unpack(read.NewState).Equal(state) || len(backend.calls) != asked {
				t.Errorf("the state changed, or the host was asked")
			}
		})
	}
}

// slowBackend makes a part of an instance and then waits for its context.
type slowBackend struct {
	*fakeBackend
	begun chan struct{}
}

func (b slowBackend) Create(ctx context.Context, spec egress.Spec) (egress.Instance, error) {
	instance, err := b.fakeBackend.Create(ctx, spec)
	close(b.begun)
	<-ctx.Done()
	return instance, errors.Join(err, ctx.Err())
}

func TestACreationCutShortIsSavedCompletely(t *testing.T) {
	for name, c := range map[string]struct {
		config    tree
		interrupt bool
		says      string
	}{
		"by its time limit": {instanceTree().with("timeouts.create", "50ms"), false, "timeouts.create"},
		"by Terraform":      {instanceTree(), true, "interrupted"},
	} {
		t.Run(name, func(t *testing.T) {
			backend := slowBackend{newFakeBackend(), make(chan struct{})}
			backend.halfway = true
			backend.fail("create", errors.New("still waiting for an address"))
			p := newClient(t, backend)
			p.configure(providerTree())
			planned := p.plan(c.config, p.nothing())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.interrupt {
				go func() { <-backend.begun; cancel() }()
			}
			resp, err := p.server.ApplyResourceChange(ctx, &tfprotov6.ApplyResourceChangeRequest{
				TypeName: resourceType, Config: p.pack(value(t, p.resource().ValueType(), c.config)),
				PriorState: p.pack(p.nothing()), PlannedState: planned.PlannedState,
			})
			if err != nil {
				t.Fatal(err)
			}
			expectOne(t, resp.Diagnostics, "", []string{"Still waiting for an address", c.says, "tainted"})
			state := p.unpack(resp.NewState)
			if !state.IsFullyKnown() {
				t.Errorf("the state holds unknown values: %s", state)
			}
			for at, want := range map[string]string{"id": "kvm://hv1/ci-egress-1", "state": "provisioning", "kvm.mac": kvm.MACAddress("hv1", "ci-egress-1"), "kvm.image_sha256": sumA} {
				if got := textAt(t, state, at); got != want {
					t.Errorf("%s is %q, want %q", at, got, want)
				}
			}
			if strings.Contains(state.String(), secretText) {
				t.Errorf("the state holds the password")
			}
		})
	}
}

func textAt(t *testing.T, v tftypes.Value, dotted string) string {
	t.Helper()
	var text *string
	if err := at(t, v, dotted).As(&text); err != nil {
		t.Fatal(err)
	}
	if text == nil {
		return ""
	}
	return *text
}
