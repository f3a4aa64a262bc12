package image

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"
)

// Reader reads an image once, from its first byte to its last, and verifies
// its checksum on the way. Make one with Source.Open.
type Reader struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	doing  string
	size   int64
	header Header
	want   string
	ahead  sync.WaitGroup // of the goroutine of Packets

	mu     sync.Mutex // over all below
	stream io.ReadCloser
	first  []byte // read for the header, not yet handed out
	offset int64
	hash   hash.Hash
	sum    string
	err    error // what every further Read returns
}

// Header is what the image is.
func (r *Reader) Header() Header { return r.header }

// Size is the length of the file in bytes, -1 when the server did not say it.
func (r *Reader) Size() int64 { return r.size }

// SHA256 is the checksum of the whole file in lower-case hexadecimal, empty
// until all of it was read.
func (r *Reader) SHA256() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sum
}

// Read reads the next bytes of the image. It returns io.EOF only after the
// whole image with the right checksum; any other end is an *egress.Fault:
// ErrPermanent when the checksum differs, ErrTransient when the connection
// broke for good, stalled, or the context ended. Of a wrong image whose size
// is known it withholds the end, so that a consumer that counts bytes does not
// take it for whole either.
func (r *Reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := r.next(p)
	r.hash.Write(p[:n]) // never fails, by hash.Hash's contract
	r.offset += int64(n)
	switch {
	case err == nil && r.offset != r.size:
		return n, nil
	case err == nil || errors.Is(err, io.EOF):
		r.err = r.verify()
	default:
		r.err = err
	}
	if !errors.Is(r.err, io.EOF) {
		return 0, r.err
	}
	if n > 0 {
		return n, nil
	}
	return 0, io.EOF
}

// Packets returns a reader of the image whose every Read gives as much as
// fits, up to size bytes, and less only at the end. What leaves in messages
// should be cut so: a TLS body by itself yields 16 KiB at a time. libvirt's own
// client sends packets of 262,120 bytes.
//
// It reads and hashes a few packets ahead, while the consumer is busy sending;
// it holds packetsAhead of them, whatever the size of the image. Use it instead
// of Read, once, from one goroutine. Close ends it.
func (r *Reader) Packets(size int) io.Reader {
	p := &packets{reader: r, size: size, full: make(chan packet, packetsAhead), empty: make(chan []byte, packetsAhead)}
	for range packetsAhead {
		p.empty <- nil // made when first needed: a small image needs fewer
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		p.err = r.err
		return p
	}
	r.ahead.Go(p.fill)
	return p
}

// Close gives the connection or file free and ends a Read that waits. It may
// be called at any time, from any goroutine, and more than once.
func (r *Reader) Close() error {
	r.cancel(os.ErrClosed)
	err := r.closeStream()
	r.ahead.Wait()
	if err != nil {
		return fmt.Errorf("closing after %s: %w", r.doing, err)
	}
	return nil
}

func (r *Reader) closeStream() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		return nil
	}
	err := r.stream.Close()
	r.stream, r.first = nil, nil
	if r.err == nil {
		r.err = transient(r.doing, os.ErrClosed)
	}
	return err
}

// readHeader reads the first bytes and keeps them for Read.
func (r *Reader) readHeader() error {
	first := make([]byte, HeaderLength)
	n, err := io.ReadFull(r.stream, first)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	r.first = first[:n]
	r.header, err = ParseHeader(r.first, r.size)
	if err != nil {
		return permanent(r.doing, err, "An image must be a qcow2 or raw disk; give source and sha256 of one in the provider's images.")
	}
	return nil
}

func (r *Reader) next(p []byte) (int, error) {
	if len(r.first) == 0 {
		return r.stream.Read(p)
	}
	if r.ctx.Err() != nil {
		return 0, transient(r.doing, context.Cause(r.ctx))
	}
	n := copy(p, r.first)
	r.first = r.first[n:]
	return n, nil
}

// verify compares the checksum of all that was read; io.EOF is its yes.
func (r *Reader) verify() error {
	r.sum = hex.EncodeToString(r.hash.Sum(nil))
	if r.sum == r.want {
		return io.EOF
	}
	return permanent(r.doing, fmt.Errorf("its sha256 is %s, and the configuration wants %s (%d bytes read)", r.sum, r.want, r.offset),
		"Compare both with the checksum that the image's publisher names. If the file was replaced by a newer one, update sha256; "+
			"if the publisher's is the configured one, do not use the file.")
}
