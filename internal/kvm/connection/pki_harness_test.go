package connection

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         string
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if template, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return authority{template, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// issued is a certificate with its key, in PEM format.
type issued struct{ certificate, key string }

// issue makes a certificate for 127.0.0.1, unless change says otherwise.
func (a authority) issue(t *testing.T, name string, change func(*x509.Certificate)) issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return issued{
		certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		key:         string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	}
}

func (i issued) pair(t *testing.T) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair([]byte(i.certificate), []byte(i.key))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// files writes the certificate and the key to files.
func (i issued) files(t *testing.T) (certificate, key string) {
	t.Helper()
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "clientcert.pem"), filepath.Join(dir, "clientkey.pem")
	writeFile(t, certificate, i.certificate)
	writeFile(t, key, i.key)
	return certificate, key
}

// pki is what a daemon and its clients have.
type pki struct {
	authority      authority
	server, client issued
}

func newPKI(t *testing.T) pki {
	t.Helper()
	a := newAuthority(t, "lab authority")
	return pki{a, a.issue(t, "hv1", nil), a.issue(t, "terraform", nil)}
}

// serverConfig wants a certificate of the authority, as libvirtd does.
func (p pki) serverConfig(t *testing.T) *tls.Config {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(p.authority.certificate)
	return &tls.Config{Certificates: []tls.Certificate{p.server.pair(t)}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

// startTLS listens for TLS in front of a daemon's socket, and confirms with a
// byte that it believes the client, as libvirtd does. It gives its address.
func startTLS(t *testing.T, config *tls.Config, serve func(net.Conn)) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, listener)
	s.serve = serve
	s.work.Go(s.accept)
	return listener.Addr().String()
}
