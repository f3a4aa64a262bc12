// Package proxy turns an egress.Proxy into what a machine needs to be that
// proxy: Squid's configuration, a file of password hashes and a script that
// brings Squid up at first boot. It also validates a proxy's configuration at
// plan time, so that what Squid would refuse is refused before anything is
// made.
//
// The package is pure: it renders text and talks to nothing.
package proxy
