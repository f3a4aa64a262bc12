package sshserver_test

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
)

// echo serves a unix socket that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "echo")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return path
}

func newKey(t *testing.T, algorithm string) sshserver.Key {
	t.Helper()
	key, err := sshserver.NewKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func start(t *testing.T, options sshserver.Options) *sshserver.Server {
	t.Helper()
	server, err := sshserver.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

func login(t *testing.T, server *sshserver.Server, host, user sshserver.Key) (*ssh.Client, error) {
	t.Helper()
	client, err := ssh.Dial("tcp", server.Addr(), &ssh.ClientConfig{
		User:            "ops",
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(user.Signer)},
		HostKeyCallback: ssh.FixedHostKey(host.Public()),
	})
	if err == nil {
		t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func TestServerForwardsItsSocketsAndNoOthers(t *testing.T) {
	for _, algorithm := range []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoRSA} {
		host, user := newKey(t, algorithm), newKey(t, algorithm)
		server := start(t, sshserver.Options{
			HostKeys:       []ssh.Signer{host.Signer},
			AuthorizedKeys: []ssh.PublicKey{user.Public()},
			Sockets:        map[string]string{"/run/echo": echo(t), "/run/dead": "/nonexistent"},
		})
		client, err := login(t, server, host, user)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := client.Dial("unix", "/run/echo")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
			t.Errorf("the socket gave %q, %v", got, err)
		}
		for _, path := range []string{"/run/other", "/run/dead"} {
			var refused *ssh.OpenChannelError
			if _, err := client.Dial("unix", path); !errors.As(err, &refused) || refused.Reason != ssh.ConnectionFailed {
				t.Errorf("%s gave %v, want a failed connection", path, err)
			}
		}
	}
}

func TestServerRefusesOtherKeys(t *testing.T) {
	host := newKey(t, ssh.KeyAlgoED25519)
	server := start(t, sshserver.Options{
		HostKeys:       []ssh.Signer{host.Signer},
		AuthorizedKeys: []ssh.PublicKey{newKey(t, ssh.KeyAlgoED25519).Public()},
	})
	if _, err := login(t, server, host, newKey(t, ssh.KeyAlgoED25519)); err == nil {
		t.Error("a key that is not authorized got in")
	}
	if server.Logins() != 0 || server.Connections() != 1 {
		t.Errorf("%d logins of %d connections, want 0 of 1", server.Logins(), server.Connections())
	}
}

func TestServerForwardsToItsAddressesAndNoOthers(t *testing.T) {
	host, user := newKey(t, ssh.KeyAlgoED25519), newKey(t, ssh.KeyAlgoED25519)
	options := sshserver.Options{HostKeys: []ssh.Signer{host.Signer}, AuthorizedKeys: []ssh.PublicKey{user.Public()}}
	behind := start(t, options)
	options.Addresses = map[string]string{"hv1:22": behind.Addr()}
	client, err := login(t, start(t, options), host, user)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := client.Dial("tcp", "hv1:22")
	if err != nil {
		t.Fatal(err)
	}
	greeting := make([]byte, 8)
	if _, err := io.ReadFull(conn, greeting); err != nil || string(greeting) != "SSH-2.0-" {
		t.Errorf("behind it is %q, %v", greeting, err)
	}
	var refused *ssh.OpenChannelError
	if _, err := client.Dial("tcp", "hv2:22"); !errors.As(err, &refused) || refused.Message != "Name or service not known" {
		t.Errorf("an unknown name gave %v", err)
	}
}
