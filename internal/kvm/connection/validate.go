package connection

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Validate checks what can be checked without talking to anybody: the URI, the
// shape of keys and certificates, the durations. Its error is an *egress.Fault
// of kind egress.ErrPermanent.
func Validate(h Host) error {
	e, err := parseEndpoint(h)
	if err != nil {
		return err
	}
	if err := validateUse(h, e); err != nil {
		return err
	}
	if err := validateSSH(h); err != nil {
		return err
	}
	if err := validateTLS(h); err != nil {
		return err
	}
	return validateTimeout(h, "call_timeout", h.CallTimeout)
}

// validateUse refuses settings that the URI has no use for: whoever wrote them
// means another way than the one that would be taken.
func validateUse(h Host, e endpoint) error {
	// a time-out means the same on every way
	if ssh := h.SSH; e.way != bySSH {
		ssh.Timeout = 0
		if len(ssh.Bastions) == 0 {
			ssh.Bastions = nil
		}
		if !reflect.ValueOf(ssh).IsZero() {
			return invalid(h, "ssh", fmt.Errorf("the URI %s does not go over SSH, but ssh is set", h.URI),
				fmt.Sprintf("Write qemu+ssh://user@host%s, or take ssh out.", strings.TrimPrefix(string(e.uri), "qemu://")))
		}
	}
	if e.way != byTLS && h.TLS != (TLS{}) {
		return invalid(h, "tls", fmt.Errorf("the URI %s does not go over TLS, but tls is set", h.URI),
			fmt.Sprintf("Write qemu+tls://host%s, or take tls out.", strings.TrimPrefix(string(e.uri), "qemu://")))
	}
	return nil
}

// validateSSH checks the settings that need nobody's answer.
func validateSSH(h Host) error {
	if err := validateLogin(h, "ssh", h.SSH.HostKey, h.SSH.PrivateKey); err != nil {
		return err
	}
	for i, b := range h.SSH.Bastions {
		at := fmt.Sprintf("ssh.bastions.%d", i)
		switch {
		case b.Host == "":
			return invalid(h, at+".host", errors.New("the bastion's host is empty"), "Give its name or address.")
		case strings.ContainsAny(b.Host, "@/ ,"), strings.Count(b.Host, ":") == 1, strings.HasPrefix(b.Host, "["):
			return invalid(h, at+".host", fmt.Errorf("the bastion's host %q is not a name or an address alone", b.Host),
				`Write user, host and port apart: { user = "ops", host = "jump.example.com", port = 2222 }.`)
		case b.Port < 0 || b.Port > 65535:
			return invalid(h, at+".port", fmt.Errorf("the bastion's port %d is not between 1 and 65535", b.Port), "Give the port of its SSH server, or leave it out for 22.")
		case b.PrivateKeyFile == "" && b.PrivateKey.IsZero() && !b.Passphrase.IsZero():
			return invalid(h, at+".passphrase", errors.New("the bastion has a passphrase but no private key of its own"),
				"Give its private_key_file or private_key too; or leave the passphrase out, and the host's own key and passphrase are used.")
		}
		if err := validateLogin(h, at, b.HostKey, b.PrivateKey); err != nil {
			return err
		}
	}
	return validateTimeout(h, "ssh.timeout", h.SSH.Timeout)
}

// validateLogin checks what one SSH server is logged in at with.
func validateLogin(h Host, at, hostKey string, key egress.Secret) error {
	if hostKey != "" {
		if _, err := parseHostKey(hostKey); err != nil {
			return invalid(h, at+".host_key", err,
				"Give the line of the host's public key, as in /etc/ssh/ssh_host_ed25519_key.pub: \"ssh-ed25519 AAAA...\".")
		}
	}
	if !key.IsZero() && !isPrivateKey(key) {
		return invalid(h, at+".private_key", errors.New("the text is not a private key in OpenSSH or PEM format"),
			"Give the whole private key, from its BEGIN line to its END line.")
	}
	return nil
}

// validateTLS checks the certificates that are given inline, and that what
// belongs together is given together.
func validateTLS(h Host) error {
	s := h.TLS
	hasCertificate := s.Certificate != "" || s.CertificateFile != ""
	hasKey := !s.PrivateKey.IsZero() || s.PrivateKeyFile != ""
	switch {
	case s.CA != "" && s.CAFile != "":
		return invalid(h, "tls.ca_file", errors.New("both ca and ca_file are set"), "Keep one of them.")
	case s.Certificate != "" && s.CertificateFile != "":
		return invalid(h, "tls.certificate_file", errors.New("both certificate and certificate_file are set"), "Keep one of them.")
	case !s.PrivateKey.IsZero() && s.PrivateKeyFile != "":
		return invalid(h, "tls.private_key_file", errors.New("both private_key and private_key_file are set"), "Keep one of them.")
	case hasCertificate && !hasKey:
		return invalid(h, "tls", errors.New("a client certificate is set without its private key"), "Set tls.private_key_file or tls.private_key.")
	case hasKey && !hasCertificate:
		return invalid(h, "tls", errors.New("a private key is set without its client certificate"), "Set tls.certificate_file or tls.certificate.")
	case s.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(s.CA)):
		return invalid(h, "tls.ca", errors.New("the text holds no certificate in PEM format"), "Give the whole certificate, from its BEGIN line to its END line.")
	case !s.PrivateKey.IsZero() && !isPrivateKey(s.PrivateKey):
		return invalid(h, "tls.private_key", errors.New("the text is not a private key in PEM format"), "Give the whole private key, from its BEGIN line to its END line.")
	}
	if s.Certificate != "" && !s.PrivateKey.IsZero() {
		if _, err := tls.X509KeyPair([]byte(s.Certificate), []byte(s.PrivateKey.Reveal())); err != nil {
			return invalid(h, "tls.certificate", keyPairError(err), pairRemedy)
		}
	}
	return validateTimeout(h, "tls.timeout", s.Timeout)
}

func validateTimeout(h Host, attribute string, timeout time.Duration) error {
	if timeout < 0 {
		return invalid(h, attribute, fmt.Errorf("the time-out %s is negative", timeout), "Give a positive duration.")
	}
	return nil
}

// isPrivateKey tells whether a text has the shape of a private key.
func isPrivateKey(key egress.Secret) bool {
	block, _ := pem.Decode([]byte(key.Reveal()))
	return block != nil && strings.Contains(block.Type, "PRIVATE KEY")
}
