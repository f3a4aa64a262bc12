// Package cloudinit assembles what cloud-init reads on a machine's first boot:
// user-data of one or several parts, network configuration, and the seed image
// of the NoCloud data source.
//
// The package is pure but for Seed.ISO, which stages files in a private
// temporary directory. What it writes is checked against cloud-init 22.4, which
// finds the interface of a MAC address for every kind of network set-up.
package cloudinit
