package connection

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// raw serves each connection to a unix socket with f and gives a pool that
// reaches it.
func raw(t *testing.T, f func(net.Conn)) *Pool {
	t.Helper()
	nothingLeft(t)
	path := filepath.Join(t.TempDir(), "libvirt-sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f(conn)
			_ = conn.Close()
		}
	}()
	pool := New(Host{Name: "hv1", URI: "qemu+unix:///system?socket=" + path})
	t.Cleanup(func() {
		closeOrFail(t, pool.Close)
		closeOrFail(t, listener.Close)
	})
	return pool
}

// reply answers the next call with a payload.
func reply(t *testing.T, conn net.Conn, payload ...byte) {
	t.Helper()
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(conn, head); err != nil {
		t.Error(err)
		return
	}
	if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(head))-headerSize); err != nil {
		t.Error(err)
		return
	}
	binary.BigEndian.PutUint32(head, uint32(headerSize+len(payload)))
	binary.BigEndian.PutUint32(head[16:], 1) // a reply
	if _, err := conn.Write(slices.Concat(head, payload)); err != nil {
		t.Error(err)
	}
}

// Run under the race detector this meets go-libvirt's unguarded field.
func TestADaemonThatHangsUpRightAfterOpening(t *testing.T) {
	pool := raw(t, func(conn net.Conn) {
		reply(t, conn, 0, 0, 0, 1, 0, 0, 0, 0)
		reply(t, conn)
	})
	for range 50 {
		if err := pool.Write(t.Context(), "looking up domain ci-1", lookup); !errors.Is(err, egress.ErrUnreachable) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestAPeerThatIsNoDaemonIsRefused(t *testing.T) {
	for name, greeting := range map[string]string{
		"an SSH server":             "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
		"a length below the header": "\x00\x00\x00\x01aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	} {
		t.Run(name, func(t *testing.T) {
			pool := raw(t, func(conn net.Conn) {
				if _, err := io.WriteString(conn, greeting); err != nil {
					t.Error(err)
				}
				_, _ = io.Copy(io.Discard, conn)
			})
			err := pool.Read(t.Context(), "looking up domain ci-1", lookup)
			if !errors.Is(err, egress.ErrUnreachable) {
				t.Errorf("got %v", err)
			}
			says(t, err, "does not speak libvirt's protocol")
		})
	}
}

func TestAnImpossiblePacketLaterEndsTheConnection(t *testing.T) {
	pool := raw(t, func(conn net.Conn) {
		reply(t, conn, 0, 0, 0, 1, 0, 0, 0, 0)
		reply(t, conn)
		if _, err := conn.Write(make([]byte, headerSize)); err != nil { // of length 0
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, conn)
	})
	err := pool.Write(t.Context(), "looking up domain ci-1", lookup)
	if !errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
}

func TestLargeRepliesArriveWhole(t *testing.T) {
	// larger than every buffer on the way
	s := start(t, func(*scripted) wire.Handler {
		return func(procedure uint32, _ []byte) ([]byte, *wire.Error) {
			if procedure == wire.ProcDomainLookupByName {
				return wire.DomainResult(string(make([]byte, 300<<10)), [16]byte{}, 1), nil
			}
			return nil, nil
		}
	})
	for range 3 {
		if err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Connections(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}
