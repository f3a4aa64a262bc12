package provider

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
)

// fakeBackend keeps instances in memory, does what a backend promises, and
// fails on demand.
type fakeBackend struct {
	mu        sync.Mutex
	instances map[egress.ProviderID]egress.Instance
	specs     []egress.Spec // what Create and Update were given
	calls     []string
	// failing gives, by operation, the error to return. A creation that fails
	// leaves an unfinished instance behind when halfway is set.
	failing map[string]error
	halfway bool
}

var _ egress.Backend = (*fakeBackend)(nil)

func newFakeBackend() *fakeBackend {
	return &fakeBackend{instances: map[egress.ProviderID]egress.Instance{}, failing: map[string]error{}}
}

func (b *fakeBackend) begin(operation string) error {
	b.calls = append(b.calls, operation)
	return b.failing[operation]
}

func (b *fakeBackend) Create(_ context.Context, spec egress.Spec) (egress.Instance, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.specs = append(b.specs, spec)
	err := b.begin("create")
	if err != nil && !b.halfway {
		return egress.Instance{}, err
	}
	uuid := fmt.Sprintf("00000000-0000-4000-8000-%012d", len(b.specs))
	instance := egress.Instance{
		ID: spec.ID, UID: uuid, State: egress.Running, Ready: true,
		Addresses:   []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 10+len(b.specs)))},
		Description: spec.Description,
		Tags:        spec.Tags,
		ConfigHash:  spec.ConfigHash(),
		Proxy:       withoutPasswords(spec.Proxy),
		HealthCheck: spec.HealthCheck,

		UserDataVersion: spec.UserDataVersion,
		CreatedAt:       time.Date(2026, 12, 1, 10, 0, len(b.specs), 0, time.UTC),
		KVM:             fakeMachine(uuid, spec),
	}
	if spec.Stopped {
		instance.State, instance.Ready, instance.Addresses = egress.Stopped, false, nil
	}
	if err != nil {
		instance.State, instance.Unfinished, instance.Ready, instance.Addresses = egress.Provisioning, true, false, nil
	}
	b.instances[spec.ID] = instance
	return instance, err
}

// fakeMachine is a machine as spec wants it.
func fakeMachine(uuid string, spec egress.Spec) *egress.KVMInstance {
	k := spec.KVM
	interfaces := slices.Clone(k.Interfaces)
	for i, mac := range kvm.InterfaceMACs(spec.ID.Location, spec.ID.Name, k.Interfaces) {
		interfaces[i].MAC = mac
	}
	sum := k.Image.SHA256
	if k.Image.ChecksumURL != "" {
		sum = sumB // as the list on the web has it
	}
	return &egress.KVMInstance{
		UUID: uuid, MAC: interfaces[0].MAC, Interfaces: interfaces,
		VCPUs: k.VCPUs, MemoryMiB: k.MemoryMiB, DiskGiB: k.DiskGiB, Image: k.Image.Name, ImageSHA256: sum, ImageVolume: k.Image.Volume(),
		Pool: k.Pool, VirtType: cmp.Or(k.VirtType, "qemu"), CPUMode: cmp.Or(k.CPUMode, "maximum"), Firmware: cmp.Or(k.Firmware, "bios"),
		SecureBoot: k.SecureBoot, Autostart: k.Autostart, ConsoleLog: k.ConsoleLog,
	}
}

func withoutPasswords(p *egress.Proxy) *egress.Proxy {
	if p == nil {
		return nil
	}
	out := *p
	out.Clients = make(map[string]egress.Client, len(p.Clients))
	for name, client := range p.Clients {
		client.Password = egress.Secret{}
		out.Clients[name] = client
	}
	return &out
}

func (b *fakeBackend) Get(_ context.Context, id egress.ProviderID) (egress.Instance, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.begin("get"); err != nil {
		return egress.Instance{}, err
	}
	instance, ok := b.instances[id]
	if !ok {
		return egress.Instance{}, &egress.Fault{Kind: egress.ErrNotFound, Doing: "looking for " + id.Name, Host: id.Location}
	}
	instance.Ready = false // as the interface says: only Create and Update probe
	return instance, nil
}

func (b *fakeBackend) Update(_ context.Context, id egress.ProviderID, spec egress.Spec) (egress.Instance, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.specs = append(b.specs, spec)
	if err := b.begin("update"); err != nil {
		return b.instances[id], err
	}
	instance, ok := b.instances[id]
	if !ok || (spec.UID != "" && spec.UID != instance.UID) {
		return egress.Instance{}, &egress.Fault{Kind: egress.ErrNotFound, Doing: "updating " + id.Name, Host: id.Location}
	}
	instance.Tags, instance.HealthCheck, instance.Description, instance.Foreign = spec.Tags, spec.HealthCheck, spec.Description, false
	if instance.ConfigHash == "" {
		instance.ConfigHash, instance.Proxy, instance.UserDataVersion = spec.ConfigHash(), withoutPasswords(spec.Proxy), spec.UserDataVersion
	}
	machine := *instance.KVM
	k := spec.KVM
	machine.VCPUs, machine.MemoryMiB, machine.DiskGiB = k.VCPUs, k.MemoryMiB, max(k.DiskGiB, machine.DiskGiB)
	machine.CPUMode = cmp.Or(k.CPUMode, machine.CPUMode)
	machine.Autostart, machine.ConsoleLog, machine.MissingVolumes = k.Autostart, k.ConsoleLog, nil
	if machine.Image == "" {
		machine.Image, machine.ImageSHA256, machine.ImageVolume = k.Image.Name, k.Image.SHA256, k.Image.Volume()
	}
	instance.KVM = &machine
	switch {
	case spec.Stopped:
		instance.State, instance.Addresses = egress.Stopped, nil
	case instance.State == egress.Stopped:
		instance.State = egress.Running
		instance.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.99")}
	}
	b.instances[id] = instance
	instance.Ready = !spec.Stopped
	return instance, nil
}

func (b *fakeBackend) Delete(_ context.Context, id egress.ProviderID, uid string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.begin("delete"); err != nil {
		return err
	}
	if uid == "" || b.instances[id].UID == uid {
		delete(b.instances, id)
	}
	return nil
}

func (b *fakeBackend) List(context.Context, egress.Tags) ([]egress.Instance, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []egress.Instance
	for _, instance := range b.instances {
		out = append(out, instance)
	}
	return out, b.begin("list")
}

// change does something to an instance behind Terraform's back.
func (b *fakeBackend) change(id egress.ProviderID, how func(*egress.Instance)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	instance := b.instances[id]
	how(&instance)
	b.instances[id] = instance
}

func (b *fakeBackend) stop(id egress.ProviderID) {
	b.change(id, func(i *egress.Instance) { i.State, i.Addresses = egress.Stopped, nil })
}

func (b *fakeBackend) vanish(id egress.ProviderID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.instances, id)
}

// fail makes an operation fail from now on, or work again with nil.
func (b *fakeBackend) fail(operation string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing[operation] = err
}

// count gives how often an operation was called.
func (b *fakeBackend) count(operation string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(b.calls), func(c string) bool { return c != operation }))
}

// lastSpec gives what Create or Update was given last.
func (b *fakeBackend) lastSpec() egress.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.specs[len(b.specs)-1]
}
