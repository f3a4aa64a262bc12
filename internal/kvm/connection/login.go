package connection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
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
	stageKnown           // the server is the one that was meant
	stageAuth            // keys are offered
)

// login is what it takes to log in at one server.
type login struct {
	hop      hop
	verifier *hostKeyVerifier
	keys     *keyring
}

// prepare reads what the logins at all servers on the way take, before the
// first is asked for anything.
func (t *sshTransport) prepare(agent *agentKeys) ([]login, error) {
	logins := make([]login, len(t.endpoint.hops))
	for i, server := range t.endpoint.hops {
		verifier, err := newHostKeyVerifier(server)
		if err != nil {
			return nil, at(server, err)
		}
		keys := loadKeys(server.ssh, agent)
		if !keys.usable() {
			return nil, at(server, keys.fault(server, "there is no key to log in with"))
		}
		logins[i] = login{server, verifier, keys}
	}
	return logins, nil
}

// dial connects and logs in at each server on the way in turn, all within ctx.
// The way gives up everything when its first connection is closed.
func (t *sshTransport) dial(ctx context.Context) (*ssh.Client, net.Conn, error) {
	agent := askAgent(ctx, os.Getenv("SSH_AUTH_SOCK"))
	defer agent.close()
	logins, err := t.prepare(agent)
	if err != nil {
		return nil, nil, err
	}
	first := logins[0].hop
	root, err := dialTCP(ctx, first.address())
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, timedOut(ctx, first, "waiting for the TCP connection")
		}
		return nil, nil, at(first, &egress.Fault{
			Kind:   egress.ErrUnreachable,
			Cause:  err,
			Remedy: fmt.Sprintf("See that %s is up, that its SSH server listens on port %s and that no firewall is between.", first.host, first.port),
		})
	}
	// the handshake knows no context: end it by ending what it reads from
	stop := context.AfterFunc(ctx, func() {
		_ = root.Close()
		agent.close()
	})
	conn := root
	var client *ssh.Client
	for i, next := range logins {
		if i > 0 {
			if conn, err = client.DialContext(ctx, "tcp", next.hop.address()); err != nil {
				err = passageFault(ctx, logins[i-1].hop, next.hop, err)
				break
			}
		}
		if client, err = next.handshake(ctx, conn); err != nil {
			break
		}
	}
	if !stop() && err == nil {
		err = timedOut(ctx, logins[len(logins)-1].hop, "waiting for the SSH handshake")
	}
	if err != nil {
		_ = root.Close()
		return nil, nil, err
	}
	return client, root, nil
}

// handshake logs in at one server, over a connection that ends when ctx does.
func (l login) handshake(ctx context.Context, conn net.Conn) (*ssh.Client, error) {
	var stage atomic.Int32
	config := &ssh.ClientConfig{
		Config: ssh.Config{Ciphers: ciphers},
		User:   l.hop.user,
		Auth: []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
			stage.Store(stageAuth)
			return l.keys.signers(), nil
		})},
		HostKeyCallback: func(address string, remote net.Addr, key ssh.PublicKey) error {
			stage.CompareAndSwap(stageExchange, stageKnown)
			return l.verifier.check(address, remote, key)
		},
		HostKeyAlgorithms: l.verifier.algorithms(),
	}
	sshConn, channels, requests, err := ssh.NewClientConn(conn, l.hop.address(), config)
	switch {
	case err == nil:
		return ssh.NewClient(sshConn, channels, requests), nil
	case ctx.Err() != nil:
		return nil, timedOut(ctx, l.hop, map[int32]string{
			stageExchange: "waiting for the SSH handshake",
			stageKnown:    "waiting for the SSH server to ask for a key",
			stageAuth:     "waiting for the SSH server to accept a key",
		}[stage.Load()])
	}
	return nil, at(l.hop, l.fault(err, int(stage.Load())))
}

// fault says why a handshake failed.
func (l login) fault(err error, stage int) error {
	if fault := l.verifier.fault(err); fault != nil {
		return fault
	}
	var network net.Error
	broken := errors.Is(err, io.EOF) || errors.As(err, &network)
	if stage == stageAuth && !broken {
		f := l.keys.fault(l.hop, "the SSH server let no key in: "+bare(err))
		if strings.Contains(err.Error(), "Too many authentication failures") {
			f.Remedy = fmt.Sprintf("Name the right key in %s.private_key_file: it goes before the agent's. Or unload keys from the agent.", l.hop.setting)
		}
		return f
	}
	f := &egress.Fault{
		Kind:   egress.ErrUnreachable,
		Cause:  fmt.Errorf("the SSH handshake failed: %s", bare(err)),
		Remedy: fmt.Sprintf("See that an SSH server answers on port %s of %s, and its log.", l.hop.port, l.hop.host),
	}
	var negotiation *ssh.AlgorithmNegotiationError
	if errors.As(err, &negotiation) {
		f.Kind = egress.ErrPermanent
		f.Remedy = "Update the SSH server on that machine, or allow it one of the algorithms that were offered."
	}
	return f
}

// passageFault says why a bastion did not connect to what is behind it.
func passageFault(ctx context.Context, bastion, next hop, err error) error {
	var refused *ssh.OpenChannelError
	switch {
	case ctx.Err() != nil:
		return timedOut(ctx, bastion, "waiting for the bastion to connect to "+next.address())
	case !errors.As(err, &refused):
		return at(bastion, &egress.Fault{
			Kind:   egress.ErrUnreachable,
			Cause:  fmt.Errorf("the SSH connection broke while the bastion was to connect to %s: %w", next.address(), err),
			Remedy: fmt.Sprintf("See whether %#q works from this machine.", bastion.command("true")),
		})
	case refused.Reason == ssh.Prohibited:
		return at(bastion, &egress.Fault{
			Kind:  egress.ErrPermanent,
			Cause: fmt.Errorf("the bastion forbids forwarding to %s: %s", next.address(), refused.Message),
			Remedy: fmt.Sprintf("Set `AllowTcpForwarding yes` in the sshd_config of %s, and see that neither PermitOpen there nor the key's options in authorized_keys (restrict, permitopen) leave %s out.",
				bastion.host, next.address()),
			Attribute: bastion.attribute,
		})
	}
	return at(bastion, &egress.Fault{
		Kind:   egress.ErrUnreachable,
		Cause:  fmt.Errorf("the bastion could not connect to %s: %s", next.address(), refused.Message),
		Remedy: fmt.Sprintf("The name %s is looked up on the bastion. See there whether `ssh-keyscan -p %s %s` reaches it.", next.host, next.port, next.host),
	})
}

// at says at which server on the way a fault is.
func at(server hop, err error) error {
	var f *egress.Fault
	if !errors.As(err, &f) {
		return err
	}
	named := *f
	named.Cause = server.named(f.Cause)
	return &named
}

// timedOut makes the fault for a context that ended at a stage of connecting.
func timedOut(ctx context.Context, server hop, stage string) error {
	return at(server, &egress.Fault{
		Kind:   egress.ErrUnreachable,
		Cause:  fmt.Errorf("%s: %w", stage, context.Cause(ctx)),
		Remedy: fmt.Sprintf("See whether %#q works from this machine.", server.command("true")),
	})
}

// bare strips the SSH library's prefixes.
func bare(err error) string {
	text := strings.TrimPrefix(err.Error(), "ssh: handshake failed: ")
	return strings.TrimPrefix(text, "ssh: ")
}
