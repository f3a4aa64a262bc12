package kvm

import (
	"fmt"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// domainState is a domain's state with its reason, as virDomainGetState gives
// them.
type domainState struct {
	State  libvirt.DomainState
	Reason int32
}

// instanceState says what an instance's machine does. nostate means that
// libvirt could not tell, which is no reason to call a machine stopped.
func (s domainState) instanceState(unfinished bool) egress.State {
	switch s.State {
	case libvirt.DomainRunning, libvirt.DomainBlocked:
		if unfinished {
			return egress.Provisioning
		}
		return egress.Running
	case libvirt.DomainNostate:
		return egress.Provisioning
	default:
		return egress.Stopped
	}
}

// active tells whether the domain has a QEMU process.
func (s domainState) active() bool {
	return s.State != libvirt.DomainShutoff
}

// dead tells whether a machine that was started will not come up by itself any
// more. A pause counts unless it is a person's or libvirt's own passing one:
// QEMU pauses a machine on an I/O error or when KVM gives up on it ("KVM
// internal error", which libvirt reports with reason unknown).
func (s domainState) dead() bool {
	switch s.State {
	case libvirt.DomainShutoff, libvirt.DomainCrashed:
		return true
	case libvirt.DomainPaused:
		switch libvirt.DomainPausedReason(s.Reason) {
		case libvirt.DomainPausedUnknown, libvirt.DomainPausedIoerror, libvirt.DomainPausedWatchdog,
			libvirt.DomainPausedCrashed, libvirt.DomainPausedShuttingDown, libvirt.DomainPausedAPIError:
			return true
		}
	}
	return false
}

// String names state and reason as virsh domstate --reason does.
func (s domainState) String() string {
	states := map[libvirt.DomainState]string{
		libvirt.DomainNostate: "no state", libvirt.DomainRunning: "running", libvirt.DomainBlocked: "idle",
		libvirt.DomainPaused: "paused", libvirt.DomainShutdown: "in shutdown", libvirt.DomainShutoff: "shut off",
		libvirt.DomainCrashed: "crashed", libvirt.DomainPmsuspended: "pmsuspended",
	}
	name, ok := states[s.State]
	if !ok {
		return fmt.Sprintf("state %d", s.State)
	}
	if reason := s.reason(); reason != "" {
		return name + " (" + reason + ")"
	}
	return name
}

func (s domainState) reason() string {
	switch s.State {
	case libvirt.DomainShutoff:
		return map[libvirt.DomainShutoffReason]string{
			libvirt.DomainShutoffShutdown: "the guest powered off", libvirt.DomainShutoffDestroyed: "destroyed",
			libvirt.DomainShutoffCrashed: "QEMU crashed", libvirt.DomainShutoffSaved: "saved to disk",
			libvirt.DomainShutoffFailed: "it failed to start", libvirt.DomainShutoffDaemon: "the daemon lost it",
		}[libvirt.DomainShutoffReason(s.Reason)]
	case libvirt.DomainPaused:
		return map[libvirt.DomainPausedReason]string{
			libvirt.DomainPausedUnknown: "QEMU stopped it, possibly after a KVM internal error",
			libvirt.DomainPausedUser:    "by a person", libvirt.DomainPausedIoerror: "I/O error on a disk",
			libvirt.DomainPausedWatchdog: "watchdog", libvirt.DomainPausedCrashed: "the guest crashed",
			libvirt.DomainPausedShuttingDown: "shutting down", libvirt.DomainPausedAPIError: "an API call failed",
		}[libvirt.DomainPausedReason(s.Reason)]
	case libvirt.DomainCrashed:
		if libvirt.DomainCrashedReason(s.Reason) == libvirt.DomainCrashedPanicked {
			return "kernel panic"
		}
	}
	return ""
}
