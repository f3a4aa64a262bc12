package connection

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// tlsTransport reaches a daemon that listens for TLS. go-libvirt's own dialer
// is not used: neither its handshake nor its wait for the daemon's word ends
// with a context.
type tlsTransport struct {
	host     Host
	endpoint endpoint
}

func (t *tlsTransport) close() {}

// open connects, shakes hands, and waits for the byte by which libvirt says
// that it believes this client's certificate (virNetServerClientCheckAccess in
// src/rpc/virnetserverclient.c).
func (t *tlsTransport) open(ctx context.Context) (net.Conn, error) {
	credentials, err := loadCredentials(t.host)
	if err != nil {
		return nil, err
	}
	raw, err := dialTCP(ctx, t.endpoint.address())
	if err != nil {
		return nil, remoteFault(ctx, err, "`listen_tls = 1`", "virtproxyd-tls.socket")
	}
	config := credentials.config()
	config.ServerName = t.endpoint.host
	if t.host.TLS.ServerName != "" {
		config.ServerName = t.host.TLS.ServerName
	}
	conn := tls.Client(raw, config)
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	stage := "waiting for the TLS handshake"
	err = conn.HandshakeContext(ctx)
	if err == nil {
		stage = "waiting for the daemon to accept this client's certificate"
		err = confirmed(conn)
	}
	switch {
	case !stop() || (err != nil && ctx.Err() != nil):
		err = &egress.Fault{
			Kind:   egress.ErrUnreachable,
			Cause:  fmt.Errorf("%s: %w", stage, context.Cause(ctx)),
			Remedy: "See whether the daemon hangs: run `virsh list` on that machine.",
		}
	case err != nil:
		err = t.fault(err, config.ServerName, credentials)
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return &encryptedConn{Conn: conn}, nil
}

// errNotConfirmed says that the daemon hung up after the handshake, or said no.
var errNotConfirmed = errors.New("the daemon hung up after the handshake")

// confirmed reads the daemon's word.
func confirmed(conn io.Reader) error {
	var word [1]byte
	switch _, err := io.ReadFull(conn, word[:]); {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return errNotConfirmed
	case err != nil:
		return err
	case word[0] != 1:
		return errNotConfirmed
	}
	return nil
}

// fault says why a TLS connection did not come about.
func (t *tlsTransport) fault(err error, name string, c credentials) error {
	at := "kvm.hosts." + t.host.Name + ".tls"
	permanent := func(attribute string, cause error, remedy string) error {
		return &egress.Fault{Kind: egress.ErrPermanent, Cause: cause, Remedy: remedy, Attribute: at + attribute}
	}
	var verification *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var misnamed x509.HostnameError
	var certificate x509.CertificateInvalidError
	var noTLS tls.RecordHeaderError
	var network *net.OpError
	switch {
	case errors.As(err, &misnamed):
		return permanent(".server_name", fmt.Errorf("the server's certificate is %s, not for %s", namesOf(misnamed.Certificate), name),
			"Put a name of the certificate into the URI, or set tls.server_name to one; or have the certificate made anew with this name as a subject alternative name (a common name alone does not count).")
	case errors.As(err, &certificate) && certificate.Reason == x509.Expired:
		from, until := certificate.Cert.NotBefore.UTC().Format(time.DateTime), certificate.Cert.NotAfter.UTC().Format(time.DateTime)
		return permanent("", fmt.Errorf("the server's certificate (%s) is valid from %s to %s UTC, and it is %s",
			certificate.Cert.Subject, from, until, time.Now().UTC().Format(time.DateTime)),
			"Renew the certificate on that machine and restart its daemon; or set this machine's clock right.")
	case errors.As(err, &unknown) && errors.As(err, &verification):
		leaf := verification.UnverifiedCertificates[0]
		return permanent(".ca_file", fmt.Errorf("the server's certificate (%s) is issued by %s, and %s has no such authority",
			leaf.Subject, leaf.Issuer, c.authoritiesFrom),
			"Set tls.ca_file to the certificate of the authority that issued the daemon's (on that machine: /etc/pki/CA/cacert.pem).")
	case errors.As(err, &verification):
		return permanent(".ca_file", fmt.Errorf("the server's certificate is not to be believed: %w", verification.Err), "Have the daemon's certificate made anew.")
	case errors.As(err, &noTLS):
		return permanent("", errors.New("the other side does not speak TLS"),
			"See that the URI's port is the daemon's TLS port (16514 unless libvirtd.conf says otherwise). Without TLS the URI is qemu+tcp://.")
	case errors.Is(err, errNotConfirmed), errors.As(err, &network) && network.Op == "remote error":
		return permanent(".certificate_file", fmt.Errorf("the daemon refuses this client (%s): %w", c.shown(), err),
			"See the daemon's log on that machine. The client certificate must be valid and issued by the authority that the daemon believes (ca_file in libvirtd.conf); "+
				"and where tls_allowed_dn_list is set there, its subject must be in it.")
	}
	return &egress.Fault{
		Kind:   egress.ErrUnreachable,
		Cause:  fmt.Errorf("the TLS handshake failed: %w", err),
		Remedy: "See the daemon's log on that machine: it may be at its limit of clients, or restarting.",
	}
}

// namesOf says for whom a certificate is.
func namesOf(c *x509.Certificate) string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return fmt.Sprintf("for no name (its common name %q does not count)", c.Subject.CommonName)
	}
	return "for " + strings.Join(names, ", ")
}

// encryptedConn is a TLS connection that is closed without waiting: its
// farewell may have to queue behind what is being sent, for as long as
// crypto/tls allows (5 seconds).
type encryptedConn struct {
	*tls.Conn
	once sync.Once
}

// Close begins to close the connection.
func (c *encryptedConn) Close() error {
	c.once.Do(func() { go func() { _ = c.Conn.Close() }() })
	return nil
}
