package cloudinit

import _ "embed"

//go:embed guest-agent.sh
var guestAgent []byte

// DefaultVendorData is a script that makes sure that the QEMU guest agent runs,
// which tells the machine's addresses on networks whose leases libvirt does not
// know. It never keeps anything else waiting and never fails: the proxy works
// without the agent, and a machine may have no way to a package mirror.
func DefaultVendorData() []byte { return append([]byte(nil), guestAgent...) }
