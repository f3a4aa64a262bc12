package image

import (
	"context"
	"errors"
	"io"
)

// packetsAhead is how many packets Packets holds: one being sent, the others
// read meanwhile.
const packetsAhead = 4

// packet is a piece of an image, and what came instead of the next one.
type packet struct {
	data []byte
	err  error
}

// packets is what Reader.Packets returns. Its buffers go round: filled by fill,
// emptied by Read, and back.
type packets struct {
	reader *Reader
	size   int
	full   chan packet
	empty  chan []byte
	buffer []byte // of the packet at hand
	rest   []byte // of it, not yet handed out
	err    error  // after rest
}

// Read fills b, up to the packet size.
func (p *packets) Read(b []byte) (int, error) {
	b = b[:min(len(b), p.size)]
	n := 0
	for n < len(b) {
		if len(p.rest) == 0 {
			if p.err != nil {
				break
			}
			p.fetch()
		}
		taken := copy(b[n:], p.rest)
		n, p.rest = n+taken, p.rest[taken:]
	}
	if n > 0 || len(b) == 0 {
		return n, nil
	}
	return 0, p.err
}

// fetch swaps the used-up packet for the next.
func (p *packets) fetch() {
	if p.buffer != nil {
		p.empty <- p.buffer // never blocks: it has room for every buffer
		p.buffer = nil
	}
	select {
	case next := <-p.full:
		p.buffer, p.rest, p.err = next.data[:cap(next.data)], next.data, next.err
	case <-p.reader.ctx.Done():
		p.err = transient(p.reader.doing, context.Cause(p.reader.ctx))
	}
}

// fill reads packets until the image or the context ends.
func (p *packets) fill() {
	done := p.reader.ctx.Done()
	for {
		var buffer []byte
		select {
		case buffer = <-p.empty:
		case <-done:
			return
		}
		if buffer == nil {
			buffer = make([]byte, p.size)
		}
		n, err := io.ReadFull(p.reader, buffer)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		select {
		case p.full <- packet{data: buffer[:n], err: err}:
		case <-done:
			return
		}
		if err != nil {
			return
		}
	}
}
