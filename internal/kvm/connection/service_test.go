package connection

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
)

// service serves the connections to a listener until the test ends.
type service struct {
	listener net.Listener
	serve    func(net.Conn)
	mu       sync.Mutex
	open     map[net.Conn]struct{}
	work     sync.WaitGroup
}

func newService(t *testing.T, listener net.Listener) *service {
	t.Helper()
	s := &service{listener: listener, open: map[net.Conn]struct{}{}}
	t.Cleanup(func() {
		closeOrFail(t, listener.Close)
		s.mu.Lock()
		for conn := range s.open {
			_ = conn.Close()
		}
		s.mu.Unlock()
		s.work.Wait()
	})
	return s
}

func (s *service) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.open[conn] = struct{}{}
		s.mu.Unlock()
		s.work.Go(func() {
			s.serve(conn)
			_ = conn.Close()
			s.mu.Lock()
			delete(s.open, conn)
			s.mu.Unlock()
		})
	}
}

// startTCP serves a port of this machine and gives its address.
func startTCP(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, listener)
	s.serve = serve
	s.work.Go(s.accept)
	return listener.Addr().String()
}

// confirming says yes to the client, then connects it to a daemon's socket.
func confirming(socket string) func(net.Conn) {
	return func(client net.Conn) {
		if _, err := client.Write([]byte{1}); err == nil {
			join(client, socket)
		}
	}
}

// join connects a client to a daemon's socket until either hangs up.
func join(client net.Conn, socket string) {
	daemon, err := new(net.Dialer).DialContext(context.Background(), "unix", socket)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, daemon}, {daemon, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = client.Close()
			_ = daemon.Close()
		})
	}
	both.Wait()
}

// silent reads and never answers.
func silent(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func portNumber(t *testing.T, port string) int {
	t.Helper()
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
