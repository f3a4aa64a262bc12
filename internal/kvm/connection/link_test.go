package connection

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// link is a network between a client and a server: it can be slow, and it can
// go dead without a word.
type link struct {
	address  string // host:port, or the path of a unix socket
	listener net.Listener
	upstream func() (net.Conn, error)
	delay    time.Duration // one way
	accepted atomic.Int64
	served   atomic.Int64
	stopped  chan struct{}

	mu   sync.Mutex
	thaw chan struct{} // what passes waits for it; nil while the link is alive
	open map[net.Conn]struct{}
	work sync.WaitGroup
}

// startLink makes a link to a server. An empty path means TCP.
func startLink(t *testing.T, path, network, upstream string, delay time.Duration) *link {
	t.Helper()
	kind, at := "tcp", "127.0.0.1:0"
	if path != "" {
		kind, at = "unix", path
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), kind, at)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{
		address:  listener.Addr().String(),
		listener: listener,
		upstream: func() (net.Conn, error) { return new(net.Dialer).DialContext(context.Background(), network, upstream) },
		delay:    delay,
		stopped:  make(chan struct{}),
		open:     map[net.Conn]struct{}{},
	}
	l.work.Go(l.accept)
	t.Cleanup(func() {
		close(l.stopped)
		closeOrFail(t, listener.Close)
		l.cut()
		l.work.Wait()
	})
	return l
}

// freeze makes the link go dead: nothing is lost and nothing arrives.
func (l *link) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.thaw = make(chan struct{})
}

// revive lets what waits arrive.
func (l *link) revive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.thaw)
	l.thaw = nil
}

// frozen tells whether the link is dead.
func (l *link) frozen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.thaw != nil
}

// cut closes all connections.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.open {
		_ = conn.Close()
	}
}

// connections gives how many are served now.
func (l *link) connections() int { return int(l.accepted.Load() - l.served.Load()) }

func (l *link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.accepted.Add(1)
		l.work.Go(func() { l.serve(client) })
	}
}

func (l *link) serve(client net.Conn) {
	defer l.served.Add(1)
	defer func() { _ = client.Close() }()
	server, err := l.upstream()
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	l.mu.Lock()
	l.open[client], l.open[server] = struct{}{}, struct{}{}
	l.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			l.carry(way[0], way[1])
			_ = client.Close()
			_ = server.Close()
		})
	}
	both.Wait()
	l.mu.Lock()
	delete(l.open, client)
	delete(l.open, server)
	l.mu.Unlock()
}

// carry moves bytes one way, each as late as the link is slow.
func (l *link) carry(from, to net.Conn) {
	type parcel struct {
		bytes []byte
		due   time.Time
	}
	parcels := make(chan parcel, 1024)
	var delivery sync.WaitGroup
	delivery.Go(func() {
		defer func() { _ = from.Close() }()
		for p := range parcels {
			if wait := time.Until(p.due); wait > 0 {
				select {
				case <-time.After(wait):
				case <-l.stopped:
					continue
				}
			}
			l.mu.Lock()
			thaw := l.thaw
			l.mu.Unlock()
			if thaw != nil {
				select {
				case <-thaw:
				case <-l.stopped:
					continue
				}
			}
			if _, err := to.Write(p.bytes); err != nil {
				_ = from.Close()
			}
		}
	})
	for {
		buffer := make([]byte, 64<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			parcels <- parcel{buffer[:n], time.Now().Add(l.delay)}
		}
		if err != nil {
			break
		}
	}
	close(parcels)
	delivery.Wait()
}
