// Package lab is the real infrastructure that the tests and the quickstart
// run on. Nothing of it is part of the shipped provider.
//
//   - namespace runs a program in network, mount and PID namespaces of its own;
//     whatever it starts ends with it, however it ends.
//   - hypervisor is a private libvirtd with QEMU, its network and its pool.
//   - origin is a web server on addresses of documentation networks and on
//     addresses that a proxy must never reach.
//   - guest builds and caches the Debian image that proxies run on, and makes
//     tiny images that misbehave in one way each.
//   - packages says which Debian packages the above need.
//   - cmd/egressproxy-lab keeps one such lab running for a person to use.
//
// A test that needs it begins with
//
//	func TestMain(m *testing.M) { os.Exit(namespace.Run(m.Run)) }
//
// and then calls hypervisor.Start, origin.Start and guest.Image. All of it
// needs root, and touches neither the network nor the libvirt of the machine
// it runs on.
package lab
