package kvm

import (
	"context"
	"errors"
	"strings"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// fault says what was being done on this host when err happened, with its kind
// and, where the cause is a known one, what to do about it. It returns nil for
// nil, and an error that says all this already as it is.
func (h *host) fault(doing string, err error) error {
	if err == nil {
		return nil
	}
	var already *egress.Fault
	if errors.As(err, &already) {
		if already.Host == "" {
			already.Host = h.name
		}
		return err
	}
	cause := err
	var said libvirt.Error
	if errors.As(err, &said) { // without the pool's prefix, which says the same
		cause = said
	}
	return &egress.Fault{Kind: kindOf(err), Doing: doing, Host: h.name, Cause: cause, Remedy: remedyFor(err)}
}

// unreadable says that what the daemon holds cannot be understood.
func (h *host) unreadable(doing string, err error) error {
	return &egress.Fault{Kind: egress.ErrPermanent, Doing: doing, Host: h.name, Cause: err}
}

// kindOf maps what the daemon said onto the kinds of error a caller tells
// apart. Only the daemon's own "no such object" is ErrNotFound. Codes are
// those of libvirt's virterror.h.
func kindOf(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return egress.ErrTransient
	}
	code, ok := codeOf(err)
	if !ok {
		return egress.ErrUnreachable
	}
	switch code {
	case libvirt.ErrNoDomain, libvirt.ErrNoStorageVol, libvirt.ErrNoStoragePool, libvirt.ErrNoNetwork:
		return egress.ErrNotFound
	case libvirt.ErrDomExist, libvirt.ErrStorageVolExist:
		return egress.ErrAlreadyExists
	case libvirt.ErrInvalidArg, libvirt.ErrXMLError, libvirt.ErrConfigUnsupported, libvirt.ErrNoSupport,
		libvirt.ErrArgumentUnsupported, libvirt.ErrOperationUnsupported,
		libvirt.ErrAccessDenied, libvirt.ErrOperationDenied, libvirt.ErrAuthFailed:
		return egress.ErrPermanent
	}
	if strings.Contains(err.Error(), "No space left on device") {
		return egress.ErrQuotaExceeded
	}
	return egress.ErrTransient
}

// isUnanswered tells whether a call failed without the daemon's own word, so that
// it may have taken effect, or do so yet.
func isUnanswered(err error) bool {
	return errors.Is(err, egress.ErrUnreachable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// remedies are what to do about causes that libvirt and QEMU only state.
var remedies = []struct{ says, do string }{
	{"Could not access KVM kernel module", "QEMU may not open /dev/kvm: give the user QEMU runs as access to it (often the group kvm), load the kvm module, or set kvm.virt_type = \"qemu\" to run without KVM, slowly."},
	{"KVM internal error", "The processor refused to run the guest under KVM, as nested or emulated hosts do: set kvm.virt_type = \"qemu\" to run without KVM, slowly."},
	{"No space left on device", "Free space in the storage pool, or choose another one with kvm.pool."},
	{"Permission denied", "The user QEMU runs as cannot read the volume: see its owner, the permissions of the pool's directory, and AppArmor's or SELinux's log on the host."},
	{"Cannot allocate memory", "The host has too little free memory: choose a smaller kvm.memory_mib or another host."},
	{"cannot set up guest memory", "The host has too little free memory: choose a smaller kvm.memory_mib or another host."},
}

func remedyFor(err error) string {
	for _, r := range remedies {
		if strings.Contains(err.Error(), r.says) {
			return r.do
		}
	}
	return ""
}

// codeOf gives the daemon's error code, if it was the daemon that failed.
func codeOf(err error) (libvirt.ErrorNumber, bool) {
	var e libvirt.Error
	if errors.As(err, &e) {
		return libvirt.ErrorNumber(e.Code), true
	}
	return 0, false
}

// saidByDaemon gives the daemon's own words, where they are the cause, for texts
// that name host and object already.
func saidByDaemon(err error) string {
	var e libvirt.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// isCode tells whether the daemon failed with one of codes.
func isCode(err error, codes ...libvirt.ErrorNumber) bool {
	got, ok := codeOf(err)
	for _, code := range codes {
		if ok && got == code {
			return true
		}
	}
	return false
}
