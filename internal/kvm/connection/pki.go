package connection

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// credentials is whom to believe, and what to show of this client.
type credentials struct {
	authorities     *x509.CertPool
	authoritiesFrom string
	own             *tls.Certificate // nil where there is none
	ownFrom         string           // where it is from, or why there is none
}

// config gives the settings of a TLS client.
func (c credentials) config() *tls.Config {
	config := &tls.Config{RootCAs: c.authorities, MinVersion: tls.VersionTLS12}
	if c.own != nil {
		// whether or not its issuer is among those that the server names:
		// the server's own refusal says more
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.own, nil }
	}
	return config
}

// shown names the client's certificate for an error text.
func (c credentials) shown() string {
	if c.own == nil {
		return "no client certificate was shown: " + c.ownFrom
	}
	leaf := c.own.Leaf
	return fmt.Sprintf("certificate %s, issued by %s, valid until %s, from %s",
		leaf.Subject, leaf.Issuer, leaf.NotAfter.UTC().Format(time.DateOnly), c.ownFrom)
}

// pkiDirectory is a place where libvirt's clients look for certificates
// (virNetTLSContextLocateCredentials in src/rpc/virnettlscontext.c).
type pkiDirectory struct{ authorities, certificate, key string }

// pkiDirectories gives the places in the order in which they are tried.
func pkiDirectories(root bool) []pkiDirectory {
	var places []pkiDirectory
	if home, err := os.UserHomeDir(); err == nil && !root {
		own := filepath.Join(home, ".pki", "libvirt")
		places = append(places, pkiDirectory{
			filepath.Join(own, "cacert.pem"), filepath.Join(own, "clientcert.pem"), filepath.Join(own, "clientkey.pem"),
		})
	}
	return append(places, pkiDirectory{
		"/etc/pki/CA/cacert.pem", "/etc/pki/libvirt/clientcert.pem", "/etc/pki/libvirt/private/clientkey.pem",
	})
}

// loadCredentials reads the certificates and the key. Its error is an
// *egress.Fault.
func loadCredentials(h Host) (credentials, error) {
	return loadCredentialsFrom(h, pkiDirectories(os.Geteuid() == 0))
}

func loadCredentialsFrom(h Host, places []pkiDirectory) (credentials, error) {
	c := credentials{authorities: x509.NewCertPool()}
	if err := c.readAuthorities(h, places); err != nil {
		return c, err
	}
	err := c.readOwn(h, places)
	return c, err
}

func (c *credentials) readAuthorities(h Host, places []pkiDirectory) error {
	text := []byte(h.TLS.CA)
	c.authoritiesFrom = "the attribute tls.ca"
	if h.TLS.CA == "" {
		files := []string{h.TLS.CAFile}
		if h.TLS.CAFile == "" {
			files = nil
			for _, place := range places {
				files = append(files, place.authorities)
			}
		}
		var err error
		if text, c.authoritiesFrom, err = firstFile(files); err != nil {
			return tlsFault(h, "ca_file", fmt.Errorf("the certificate of the authority that issued the daemon's cannot be read: %w", err),
				"Set tls.ca_file (or tls.ca) to it; on the daemon's machine it is /etc/pki/CA/cacert.pem.")
		}
	}
	if !c.authorities.AppendCertsFromPEM(text) {
		return tlsFault(h, "ca_file", fmt.Errorf("%s holds no certificate in PEM format", c.authoritiesFrom), "Set tls.ca_file to a file of certificates in PEM format.")
	}
	return nil
}

// readOwn reads the client's certificate and key. Where none is configured and
// none is in the usual places there is none, which a daemon may allow.
func (c *credentials) readOwn(h Host, places []pkiDirectory) error {
	s := h.TLS
	if s.Certificate == "" && s.CertificateFile == "" {
		return c.findOwn(h, places)
	}
	certificate, key := []byte(s.Certificate), []byte(s.PrivateKey.Reveal())
	c.ownFrom = "the attribute tls.certificate"
	var err error
	if s.Certificate == "" {
		if certificate, c.ownFrom, err = firstFile([]string{s.CertificateFile}); err != nil {
			return tlsFault(h, "certificate_file", fmt.Errorf("the client certificate cannot be read: %w", err), "Name a readable file.")
		}
	}
	if s.PrivateKey.IsZero() {
		if key, _, err = firstFile([]string{s.PrivateKeyFile}); err != nil {
			return tlsFault(h, "private_key_file", fmt.Errorf("the client's private key cannot be read: %w", err), "Name a readable file.")
		}
	}
	return c.pair(h, certificate, key)
}

// findOwn looks in the usual places for a certificate and its key, both in the
// same place.
func (c *credentials) findOwn(h Host, places []pkiDirectory) error {
	var missing []error
	for _, place := range places {
		certificate, from, err := firstFile([]string{place.certificate})
		var key []byte
		if err == nil {
			key, _, err = firstFile([]string{place.key})
		}
		switch {
		case err == nil:
			c.ownFrom = from
			return c.pair(h, certificate, key)
		case !errors.Is(err, fs.ErrNotExist):
			return tlsFault(h, "certificate_file", fmt.Errorf("the client certificate or its key cannot be read: %w", err),
				"Make it readable for this user, or set tls.certificate_file and tls.private_key_file.")
		}
		missing = append(missing, err)
	}
	c.ownFrom = joined(missing).Error()
	return nil
}

const pairRemedy = "Give the certificate and the unencrypted private key that was made for it, both in PEM format."

func (c *credentials) pair(h Host, certificate, key []byte) error {
	own, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return tlsFault(h, "certificate_file", fmt.Errorf("%s: %w", c.ownFrom, keyPairError(err)), pairRemedy)
	}
	c.own = &own
	return nil
}

// keyPairError says what is wrong with a certificate and its key.
func keyPairError(err error) error {
	return errors.New("the client certificate and its private key do not serve: " + strings.TrimPrefix(err.Error(), "tls: "))
}

// firstFile reads the first of the files that exists.
func firstFile(paths []string) (text []byte, path string, err error) {
	var missing []error
	for _, path := range paths {
		text, err := os.ReadFile(expandHome(path))
		if err == nil {
			return text, path, nil
		}
		missing = append(missing, fmt.Errorf("%s: %w", path, reasonOf(err)))
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return nil, "", joined(missing)
}

func tlsFault(h Host, attribute string, cause error, remedy string) error {
	return &egress.Fault{Kind: egress.ErrPermanent, Cause: cause, Remedy: remedy, Attribute: "kvm.hosts." + h.Name + ".tls." + attribute}
}
