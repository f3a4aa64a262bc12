package connection

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/digitalocean/go-libvirt/socket"
)

// The parts of libvirt's RPC framing that are looked at here
// (src/rpc/virnetprotocol.x and src/remote/remote_protocol.x).
const (
	lengthSize      = 4
	headerSize      = 28 // length, program, version, procedure, type, serial, status
	maxPacket       = 32<<20 + headerSize
	remoteProgram   = 0x20008086
	procConnectOpen = 1
)

// wireConn is the connection as go-libvirt sees it. It makes up for three
// things that go-libvirt lacks: it tells when the connection is lost, it
// refuses packets whose length would make go-libvirt panic, and it holds a
// loss back until go-libvirt has finished opening, since go-libvirt reads and
// writes a field unguarded when the two coincide.
type wireConn struct {
	net.Conn
	reader *bufio.Reader
	left   int  // bytes of the packet begun that are still to be read
	opened bool // the reply to ConnectOpen has begun

	settled chan struct{} // closed when go-libvirt has opened, or failed to

	once  sync.Once
	lost  chan struct{} // closed when the connection is of no more use
	cause error         // why; to be read once lost is closed
}

func newWireConn(conn net.Conn) *wireConn {
	return &wireConn{
		Conn:    conn,
		reader:  bufio.NewReaderSize(conn, 64<<10),
		settled: make(chan struct{}),
		lost:    make(chan struct{}),
	}
}

// Dial hands the connection to go-libvirt.
func (c *wireConn) Dial() (net.Conn, error) { return c, nil }

// Read gives bytes of one packet at a time.
func (c *wireConn) Read(b []byte) (int, error) {
	if c.left == 0 {
		if err := c.nextPacket(); err != nil {
			return 0, c.ended(err)
		}
	}
	n, err := c.reader.Read(b[:min(len(b), c.left)])
	c.left -= n
	if err != nil {
		return n, c.ended(err)
	}
	return n, nil
}

// Write sends bytes. A connection that failed to send is closed.
func (c *wireConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.fail(err)
	}
	return n, err
}

// Close closes the connection; it never waits for the other side.
func (c *wireConn) Close() error {
	c.fail(net.ErrClosed)
	return nil
}

// fail closes the connection and keeps the first cause.
func (c *wireConn) fail(cause error) {
	c.once.Do(func() {
		c.cause = cause
		close(c.lost)
		_ = c.Conn.Close()
	})
}

// isLost tells whether the connection is of no more use.
func (c *wireConn) isLost() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}

func (c *wireConn) nextPacket() error {
	// the length comes first, and alone: the greeting of another service may
	// be shorter than a header
	head, err := c.reader.Peek(lengthSize)
	length := uint32(0)
	if err == nil {
		if length = binary.BigEndian.Uint32(head); length < headerSize || length > maxPacket {
			return fmt.Errorf("the other side does not speak libvirt's protocol (packet of %d bytes)", length)
		}
		head, err = c.reader.Peek(headerSize)
	}
	if err != nil {
		if len(head) > 0 && errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(head[4*i:]) }
	c.left = int(length)
	if word(1) == remoteProgram && word(3) == procConnectOpen && word(4) == socket.Reply && word(6) == socket.StatusOK {
		c.opened = true
	}
	return nil
}

// ended records the loss and gives go-libvirt an error that it takes for
// final: a *net.OpError can count as temporary, which it would retry for ever.
func (c *wireConn) ended(err error) error {
	c.fail(err)
	if c.opened {
		<-c.settled
	}
	return io.EOF
}
