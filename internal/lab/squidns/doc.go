// Package squidns runs the real Squid against a made-up internet, for tests of
// the configuration that package proxy renders.
//
// Everything happens in network, mount and process namespaces that end with the test
// process: every address, public or private, is local to them and answered by
// one origin server, names come from a DNS server of the package's own, and
// /etc/squid, /run and Squid's logs are empty file systems. So whatever Squid
// lets through is seen to arrive, and nothing outside is touched.
//
// It needs root and the program squid.
package squidns
