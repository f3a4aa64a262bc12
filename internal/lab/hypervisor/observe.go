package hypervisor

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// PlantLease gives a guest that cannot ask for one a DHCP lease, by writing the
// file in which libvirt looks for the leases of its networks. It must not be
// called while a guest asks dnsmasq for one: each writes the whole file.
func (h *Hypervisor) PlantLease(mac string, addr netip.Addr) error {
	h.leaseMutex.Lock()
	defer h.leaseMutex.Unlock()
	path := filepath.Join(h.options.Dir, "lib", "dnsmasq", "lab-"+h.options.Name+".status")
	var leases []map[string]any
	if content, err := os.ReadFile(path); err == nil && len(content) > 0 {
		if err := json.Unmarshal(content, &leases); err != nil {
			return err
		}
	}
	content, err := json.Marshal(append(leases, map[string]any{
		"ip-address": addr.String(), "mac-address": mac, "expiry-time": time.Now().Add(time.Hour).Unix(),
	}))
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// PoolFiles names the files in the pool's directory that contain text, in
// order: what is on the disk, whatever libvirt remembers.
func (h *Hypervisor) PoolFiles(text string) ([]string, error) {
	entries, err := os.ReadDir(h.PoolDir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		if strings.Contains(entry.Name(), text) {
			found = append(found, entry.Name())
		}
	}
	return found, nil
}

// DomainState gives a domain's state with its reason, as in "running (booted)",
// or nothing when there is no such domain.
func (h *Hypervisor) DomainState(ctx context.Context, name string) (string, error) {
	names, err := h.Virsh(ctx, "list", "--all", "--name")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(names) {
		if strings.TrimSpace(line) != name {
			continue
		}
		out, err := h.Virsh(ctx, "domstate", "--reason", name)
		if err != nil && strings.Contains(err.Error(), "failed to get domain") { // gone meanwhile
			return "", nil
		}
		return strings.TrimSpace(out), err
	}
	return "", nil
}
