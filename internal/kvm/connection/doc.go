// Package connection reaches libvirt daemons, over a local unix socket or over
// SSH, and keeps every call to one bounded in time.
//
// The client library, go-libvirt, has no contexts, no time-outs and no
// keepalives (its issues 96, 97, 105 and 182): a call to a daemon that does not
// answer blocks for ever. A Pool therefore runs each call beside its caller,
// returns when the caller's context ends, and gives the connection up.
package connection
