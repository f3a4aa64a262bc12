package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/digitalocean/go-libvirt/socket"
)

// The programs that share one connection to a daemon.
const (
	remoteProgram = 0x20008086
	qemuProgram   = 0x20008087
)

const (
	// lengthSize is the size of the length word that starts every packet and
	// counts itself.
	lengthSize = 4
	// headerSize is the size of a packet without its payload, in bytes.
	headerSize = lengthSize + 24
	// maxPacket is the most that libvirt itself accepts, in bytes
	// (VIR_NET_MESSAGE_MAX in src/rpc/virnetprotocol.x), and some headroom.
	maxPacket = 32<<20 + headerSize
)

// errPacket is returned for bytes that cannot be a packet.
var errPacket = errors.New("not a libvirt packet")

// packet is one message of libvirt's RPC protocol: a big-endian length, a
// header of six words and an XDR-encoded payload (src/rpc/virnetprotocol.x).
type packet struct {
	socket.Header
	payload []byte
}

// procedure gives the number under which this package counts the packet.
func (p packet) procedure() uint32 {
	if p.Program == qemuProgram {
		return qemuOffset + p.Procedure
	}
	return p.Procedure
}

// isCall tells whether the packet starts a procedure.
func (p packet) isCall() bool {
	return (p.Type == socket.Call || p.Type == socket.CallWithFDs) &&
		(p.Program == remoteProgram || p.Program == qemuProgram)
}

// isReply tells whether the packet answers a call.
func (p packet) isReply() bool {
	return p.Type == socket.Reply || p.Type == socket.ReplyWithFDs
}

// isStreamEnd tells whether the packet ends a stream, well or not.
func (p packet) isStreamEnd() bool {
	return p.Type == socket.Stream && p.Status != socket.StatusContinue
}

// answer gives the head of a packet that answers p.
func (p packet) answer(packetType, status uint32, payload []byte) packet {
	h := p.Header
	h.Type, h.Status = packetType, status
	return packet{Header: h, payload: payload}
}

// encode gives the bytes of the packet.
func (p packet) encode() []byte {
	b := make([]byte, 0, headerSize+len(p.payload))
	for _, word := range []uint32{
		uint32(headerSize + len(p.payload)),
		p.Program, p.Version, p.Procedure, p.Type, uint32(p.Serial), p.Status,
	} {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return append(b, p.payload...)
}

// readPacket reads one packet. io.EOF means that the other side hung up
// between two packets.
func readPacket(r io.Reader) (packet, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return packet{}, err
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(head[4*i:]) }
	length := word(0)
	if length < headerSize || length > maxPacket {
		return packet{}, fmt.Errorf("%w: length %d", errPacket, length)
	}
	p := packet{
		Header: socket.Header{
			Program: word(1), Version: word(2), Procedure: word(3),
			Type: word(4), Serial: int32(word(5)), Status: word(6),
		},
		payload: make([]byte, length-headerSize),
	}
	if _, err := io.ReadFull(r, p.payload); err != nil {
		return packet{}, err
	}
	return p, nil
}

// Error is what a daemon answers when a procedure fails.
type Error struct {
	// Code is one of libvirt's virErrorNumber, for example 42 for "no domain".
	Code uint32
	// Message is the text that libvirt's clients show.
	Message string
}

// Error gives the message and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s (libvirt error %d)", e.Message, e.Code) }

// The parts of a remote_error that are the same in every error made here.
const (
	fromRPC    = 7 // VIR_FROM_RPC
	levelError = 2 // VIR_ERR_ERROR
)

// encode gives the XDR form of remote_error (src/remote/remote_protocol.x):
// code, domain, message, level, and the optional fields, all absent.
func (e *Error) encode() []byte {
	var b []byte
	word := func(w uint32) { b = binary.BigEndian.AppendUint32(b, w) }
	word(e.Code)
	word(fromRPC)
	word(1) // a message follows
	word(uint32(len(e.Message)))
	b = append(b, e.Message...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	word(levelError)
	for range 7 { // dom, str1, str2, str3, int1, int2, net
		word(0)
	}
	return b
}
