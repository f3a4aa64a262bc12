// Package origin is the other end of the proxies under test: web servers on
// addresses that a proxy may reach, and on addresses it must never reach but
// that would answer, so that a refusal is the proxy's own.
package origin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// The addresses that answer HTTP on port 80 and HTTPS on port 443. They are of
// TEST-NET-3 (RFC 5737), which is public as far as a proxy can tell.
var (
	Allowed = netip.MustParseAddr("203.0.113.10")
	Other   = netip.MustParseAddr("203.0.113.20")
)

// The addresses that answer HTTP on port 80 although no proxy may go there.
var (
	// Metadata is where clouds serve credentials to machines.
	Metadata = netip.MustParseAddr("169.254.169.254")
	// Private is of a private network (RFC 1918).
	Private = netip.MustParseAddr("10.0.0.5")
)

// Hosts maps names to the addresses above, for the DNS that proxies under
// test use. Names below "rebind" are allowed by name and lead to a forbidden
// address.
var Hosts = map[string]netip.Addr{
	"www.allowed.test":            Allowed,
	"other.test":                  Other,
	"rebind.allowed.test":         Metadata,
	"rebind-private.allowed.test": Private,
}

// Origin is the running servers.
type Origin struct {
	// Certificate is the self-signed certificate of the HTTPS servers, PEM.
	Certificate []byte

	servers []*http.Server
	serving sync.WaitGroup

	mu       sync.Mutex
	requests map[netip.Addr]int
}

// Start gives the loopback interface the addresses above and serves on them.
// It must run inside the namespaces of package namespace.
//
// Every answer is 200 with the text "HOST REMOTE\n": the request's Host and
// the address it came from.
func Start(ctx context.Context) (*Origin, error) {
	certificate, certificatePEM, err := selfSigned()
	if err != nil {
		return nil, fmt.Errorf("making the origin's certificate: %w", err)
	}
	o := &Origin{Certificate: certificatePEM, requests: map[netip.Addr]int{}}
	for _, addr := range []netip.Addr{Allowed, Other, Metadata, Private} {
		// "replace" is content with an address that is there already.
		out, err := exec.CommandContext(ctx, "ip", "address", "replace", addr.String()+"/32", "dev", "lo").CombinedOutput()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("adding the origin's address %s: %w: %s", addr, err, out), o.Close())
		}
		if err := o.serve(ctx, addr, 80, nil); err != nil {
			return nil, errors.Join(err, o.Close())
		}
		if addr == Metadata || addr == Private {
			continue
		}
		if err := o.serve(ctx, addr, 443, &tls.Config{Certificates: []tls.Certificate{certificate}}); err != nil {
			return nil, errors.Join(err, o.Close())
		}
	}
	return o, nil
}

// Requests returns the number of requests that reached an address so far.
func (o *Origin) Requests(addr netip.Addr) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.requests[addr]
}

// Close ends the servers and cuts their connections. The addresses go with
// the namespace.
func (o *Origin) Close() error {
	var errs []error
	for _, s := range o.servers {
		errs = append(errs, s.Close())
	}
	o.serving.Wait()
	return errors.Join(errs...)
}

// serve listens on one address and port, with TLS when it is configured.
func (o *Origin) serve(ctx context.Context, addr netip.Addr, port uint16, config *tls.Config) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(addr, port).String())
	if err != nil {
		return fmt.Errorf("starting the origin: %w", err)
	}
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			o.mu.Lock()
			o.requests[addr]++
			o.mu.Unlock()
			w.Header().Set("Content-Type", "text/plain")
			_, _ = fmt.Fprintln(w, r.Host, r.RemoteAddr) // a client that is gone is no news
		}),
		ReadHeaderTimeout: 10 * time.Second,
		// A client that does not trust the certificate is no news.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	o.servers = append(o.servers, server)
	o.serving.Go(func() { _ = server.Serve(listener) }) // ends by Close
	return nil
}

// selfSigned makes a certificate for the names that lead to allowed addresses.
func selfSigned() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(Hosts)) {
		if !strings.HasPrefix(name, "rebind") {
			names = append(names, name)
		}
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: "egressproxy lab origin"},
		DNSNames:              names,
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.AddDate(1, 0, 0),
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	certificate := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
