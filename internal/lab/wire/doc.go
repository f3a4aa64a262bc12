// Package wire stands on libvirt's wire, for tests of what happens when a
// hypervisor's daemon answers badly, late or not at all. Proxy sits in front of
// a real daemon's socket and breaks chosen calls; Daemon is a scripted daemon
// that needs no libvirt.
package wire
