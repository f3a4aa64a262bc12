package connection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"

	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// ciphers are what is offered, in this order. AES-GCM comes first since it is
// the fastest by far where the processor helps with AES.
var ciphers = []string{
	ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305,
	ssh.CipherAES128CTR, ssh.CipherAES192CTR, ssh.CipherAES256CTR,
}

// The stages of a login, for error texts.
const (
	stageExchange = iota // banner and key exchange
	stageAuth
)

// dial connects and logs in, all within ctx.
func (t *sshTransport) dial(ctx context.Context) (*ssh.Client, error) {
	verifier, err := newHostKeyVerifier(t.host, t.endpoint)
	if err != nil {
		return nil, err
	}
	keys := loadKeys(ctx, t.host.SSH)
	defer keys.close()
	if len(keys.signers()) == 0 {
		return nil, keys.fault(t.host, t.endpoint, "there is no key to log in with")
	}

	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", t.endpoint.address())
	if err != nil {
		if ctx.Err() != nil {
			return nil, t.timedOut(ctx, "waiting for the TCP connection")
		}
		return nil, &egress.Fault{
			Kind:   egress.ErrUnreachable,
			Cause:  err,
			Remedy: fmt.Sprintf("See that %s is up, that its SSH server listens on port %s and that no firewall is between.", t.endpoint.host, t.endpoint.port),
		}
	}
	// the handshake knows no context: end it by ending what it reads from
	stop := context.AfterFunc(ctx, func() {
		_ = conn.Close()
		keys.close()
	})

	var stage atomic.Int32
	config := &ssh.ClientConfig{
		Config: ssh.Config{Ciphers: ciphers},
		User:   t.endpoint.user,
		Auth: []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
			stage.Store(stageAuth)
			return keys.signers(), nil
		})},
		HostKeyCallback:   verifier.check,
		HostKeyAlgorithms: verifier.algorithms(),
	}
	sshConn, channels, requests, err := ssh.NewClientConn(conn, t.endpoint.address(), config)
	if !stop() {
		if err == nil {
			_ = sshConn.Close()
		}
		if stage.Load() == stageAuth {
			return nil, t.timedOut(ctx, "waiting for the SSH server to accept a key")
		}
		return nil, t.timedOut(ctx, "waiting for the SSH handshake")
	}
	if err != nil {
		return nil, t.handshakeFault(err, verifier, keys, int(stage.Load()))
	}
	return ssh.NewClient(sshConn, channels, requests), nil
}

// handshakeFault says why a handshake failed.
func (t *sshTransport) handshakeFault(err error, verifier *hostKeyVerifier, keys *keyring, stage int) error {
	if fault := verifier.fault(err); fault != nil {
		return fault
	}
	var network net.Error
	broken := errors.Is(err, io.EOF) || errors.As(err, &network)
	if stage == stageAuth && !broken {
		return keys.fault(t.host, t.endpoint, "the SSH server refused every key: "+bare(err))
	}
	f := &egress.Fault{
		Kind:   egress.ErrUnreachable,
		Cause:  fmt.Errorf("the SSH handshake failed: %s", bare(err)),
		Remedy: fmt.Sprintf("See that an SSH server answers on port %s of %s, and its log.", t.endpoint.port, t.endpoint.host),
	}
	var negotiation *ssh.AlgorithmNegotiationError
	if errors.As(err, &negotiation) {
		f.Kind = egress.ErrPermanent
		f.Remedy = "Update the SSH server on that machine, or allow it one of the algorithms that were offered."
	}
	return f
}

// bare strips the SSH library's prefixes.
func bare(err error) string {
	text := strings.TrimPrefix(err.Error(), "ssh: handshake failed: ")
	return strings.TrimPrefix(text, "ssh: ")
}
