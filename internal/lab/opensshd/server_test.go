package opensshd_test

import (
	"net/netip"
	"os"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/namespace"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/opensshd"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
)

func TestMain(m *testing.M) { os.Exit(namespace.Run(m.Run)) }

func TestServerLetsInItsKeysAndNoOthers(t *testing.T) {
	user, other := newKey(t), newKey(t)
	server, err := opensshd.Start(t.Context(), opensshd.Options{
		Dir:            t.TempDir(),
		AuthorizedKeys: []string{string(ssh.MarshalAuthorizedKey(user.Public()))},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	client, err := login(server, user)
	if err != nil {
		t.Fatalf("%v\n%s", err, server.Log())
	}
	if _, err := login(server, other); err == nil {
		t.Error("another key got in")
	}
	server.Stop()
	if err := client.Wait(); err == nil {
		t.Error("the session outlived the server")
	}
	if _, err := login(server, user); err == nil {
		t.Error("the server outlived its end")
	}
}

func TestServersHaveConfigurationsOfTheirOwn(t *testing.T) {
	user, host := newKey(t), newKey(t)
	target, err := opensshd.Start(t.Context(), opensshd.Options{Dir: t.TempDir(), HostKeys: []sshserver.Key{host}})
	if err != nil {
		t.Fatal(err)
	}
	defer target.Stop()
	port := target.Address[len("127.0.0.1"):]
	server, err := opensshd.Start(t.Context(), opensshd.Options{
		Dir:            t.TempDir(),
		AuthorizedKeys: []string{string(ssh.MarshalAuthorizedKey(user.Public()))},
		Hosts:          map[string]netip.Addr{"hv1.inside.test": netip.MustParseAddr("127.0.0.1")},
		Lines:          []string{"PermitOpen hv1.inside.test" + port},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	client, err := login(server, user)
	if err != nil {
		t.Fatalf("%v\n%s", err, server.Log())
	}
	defer client.Close()
	conn, err := client.Dial("tcp", "hv1.inside.test"+port)
	if err != nil {
		t.Fatalf("the name is not known: %v\n%s", err, server.Log())
	}
	defer conn.Close()
	if _, err := client.Dial("tcp", target.Address); err == nil {
		t.Error("its configuration is not in force")
	}
	if string(target.HostKeys[0].Marshal()) != string(host.Public().Marshal()) {
		t.Error("the host key is another")
	}
}

func newKey(t *testing.T) sshserver.Key {
	t.Helper()
	key, err := sshserver.NewKey(ssh.KeyAlgoED25519)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func login(server *opensshd.Server, user sshserver.Key) (*ssh.Client, error) {
	return ssh.Dial("tcp", server.Address, &ssh.ClientConfig{
		User:            "root",
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(user.Signer)},
		HostKeyCallback: ssh.FixedHostKey(server.HostKeys[0]),
	})
}
