package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/digitalocean/go-libvirt/socket"
)

// Handler answers the calls of a Daemon. It gets the procedure's number and
// the XDR form of its arguments, and gives the XDR form of the result or an
// error. Every call runs in its own goroutine. A handler that waits must end
// before the daemon is closed.
type Handler func(procedure uint32, arguments []byte) (result []byte, err *Error)

// What a Handler returns to break the connection instead of answering.
var (
	// Drop closes the connection.
	Drop = &Error{Message: "drop the connection"}
	// Silence leaves the call without an answer.
	Silence = &Error{Message: "leave the call unanswered"}
)

// Daemon is a scripted libvirtd: it speaks the protocol and answers by a
// Handler. AuthList ("none needed"), ConnectOpen and ConnectClose succeed unless
// the handler fails them; uploads are swallowed and confirmed.
type Daemon struct {
	listener net.Listener
	handler  Handler
	calls    ruleset
	accepted atomic.Int64
	streamed atomic.Int64

	mu               sync.Mutex
	closed           bool
	open             map[net.Conn]struct{}
	inFlight, atMost int
	work             sync.WaitGroup
}

// StartDaemon starts a daemon on a unix socket. A nil handler answers every
// call with an empty result.
func StartDaemon(socketPath string, handler Handler) (*Daemon, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", socketPath)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", socketPath, err)
	}
	if handler == nil {
		handler = func(uint32, []byte) ([]byte, *Error) { return nil, nil }
	}
	d := &Daemon{
		listener: listener,
		handler:  handler,
		calls:    ruleset{calls: map[uint32]int{}},
		open:     map[net.Conn]struct{}{},
	}
	d.work.Go(d.accept)
	return d, nil
}

// Calls gives how often each procedure was called.
func (d *Daemon) Calls() map[uint32]int { return d.calls.counts() }

// Connections gives how many clients have connected so far.
func (d *Daemon) Connections() int { return int(d.accepted.Load()) }

// StreamBytes gives how much was uploaded, in bytes.
func (d *Daemon) StreamBytes() int64 { return d.streamed.Load() }

// Open gives how many clients are connected now.
func (d *Daemon) Open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open)
}

// MaxInFlight gives the most calls that were unanswered at one time.
func (d *Daemon) MaxInFlight() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.atMost
}

// DropAll closes all connections, as a restart does.
func (d *Daemon) DropAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for conn := range d.open {
		_ = conn.Close()
	}
}

// Close stops the daemon and waits until all its goroutines have ended.
func (d *Daemon) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	err := d.listener.Close()
	d.DropAll()
	d.work.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("closing the daemon's socket: %w", err)
	}
	return nil
}

func (d *Daemon) accept() {
	for {
		conn, err := d.listener.Accept()
		if err != nil {
			return
		}
		d.accepted.Add(1)
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			_ = conn.Close()
			return
		}
		d.open[conn] = struct{}{}
		d.mu.Unlock()
		d.work.Go(func() { d.serve(conn) })
	}
}

func (d *Daemon) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		d.mu.Lock()
		delete(d.open, conn)
		d.mu.Unlock()
	}()
	var writing sync.Mutex
	send := func(p packet) {
		writing.Lock()
		defer writing.Unlock()
		if _, err := conn.Write(p.encode()); err != nil {
			_ = conn.Close()
		}
	}
	for {
		p, err := readPacket(conn)
		if err != nil {
			return
		}
		switch {
		case p.isCall():
			d.calls.match(p.procedure())
			d.work.Go(func() { d.answer(conn, p, send) })
		case p.Type == socket.Stream && p.Status == socket.StatusContinue:
			d.streamed.Add(int64(len(p.payload)))
		case p.Type == socket.Stream && p.Status == socket.StatusOK:
			send(p.answer(socket.Stream, socket.StatusOK, nil))
		case p.Type == socket.Stream:
			aborted := Error{Code: 39, Message: "stream aborted at client request"}
			send(p.answer(socket.Stream, socket.StatusError, aborted.encode()))
		}
	}
}

func (d *Daemon) answer(conn net.Conn, p packet, send func(packet)) {
	d.mu.Lock()
	d.inFlight++
	d.atMost = max(d.atMost, d.inFlight)
	d.mu.Unlock()
	result, failure := d.handler(p.procedure(), p.payload)
	d.mu.Lock()
	d.inFlight--
	d.mu.Unlock()

	switch {
	case failure == Drop:
		_ = conn.Close()
	case failure == Silence:
	case failure != nil:
		send(p.answer(socket.Reply, socket.StatusError, failure.encode()))
	case p.procedure() == ProcAuthList && result == nil:
		// a list of one: REMOTE_AUTH_NONE
		send(p.answer(socket.Reply, socket.StatusOK, []byte{0, 0, 0, 1, 0, 0, 0, 0}))
	default:
		send(p.answer(socket.Reply, socket.StatusOK, result))
	}
}

// DomainResult gives the result of a call that returns one domain
// (remote_nonnull_domain): name, UUID and ID.
func DomainResult(name string, uuid [16]byte, id int32) []byte {
	var b bytes.Buffer
	b.Write(StringResult(name))
	b.Write(uuid[:])
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(id)))
	return b.Bytes()
}

// StringResult gives the result of a call that returns one string: its length
// and its bytes, padded to four (RFC 4506, section 4.11).
func StringResult(text string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(text)))
	b = append(b, text...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
