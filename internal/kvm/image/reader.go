package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Reader reads an image once, from its first byte to its last, unpacks it where
// it is compressed, and verifies the checksum of its file on the way. Make one
// with Source.Open.
type Reader struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	doing  string
	header Header
	ahead  sync.WaitGroup // of the goroutine of Packets

	mu      sync.Mutex // over all below
	file    *verifiedFile
	content io.Reader // what file is when unpacked, or file
	packing packing
	left    int64 // how many bytes of content are still plausible
	err     error // what every further Read returns
}

// Header is what the image is.
func (r *Reader) Header() Header { return r.header }

// Size is the length of the file in bytes, -1 when the server did not say it.
// A compressed image is larger.
func (r *Reader) Size() int64 { return r.file.size }

// SHA256 is the checksum of the whole file in lower-case hexadecimal, empty
// until all of it was read.
func (r *Reader) SHA256() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file.sum
}

// Read reads the next bytes of the image. It returns io.EOF only after the
// whole image, from a file with the right checksum; any other end is an
// *egress.Fault: ErrPermanent when the checksum differs or the file cannot be
// unpacked, ErrTransient when the connection broke for good, stalled, or the
// context ended. Of a wrong image whose size is known and that is not compressed
// it withholds the end, so that a consumer that counts bytes does not take it
// for whole either.
func (r *Reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if r.ctx.Err() != nil {
		r.err = transient(r.doing, context.Cause(r.ctx))
		return 0, r.err
	}
	n, err := r.content.Read(p)
	r.left -= int64(n)
	switch {
	case r.left < 0:
		r.err = permanent(r.doing, fmt.Errorf("unpacked, it is longer than a disk of %d bytes can be", r.header.VirtualSize),
			"Do not use the file: it is made to fill a disk.")
		return 0, r.err
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF) && r.packing.open != nil:
		r.err = r.finishFile()
	case r.packing.open != nil:
		r.err = r.unpackingFailed(err)
	default:
		r.err = err
	}
	if n > 0 && errors.Is(r.err, io.EOF) {
		return n, nil
	}
	return 0, r.err
}

// Packets returns a reader of the image whose every Read gives as much as
// fits, up to size bytes, and less only at the end. What leaves in messages
// should be cut so: a TLS body by itself yields 16 KiB at a time. libvirt's own
// client sends packets of 262,120 bytes.
//
// It reads, unpacks and hashes a few packets ahead, while the consumer is busy
// sending; it holds packetsAhead of them, whatever the size of the image. Use it
// instead of Read, once, from one goroutine. Close ends it.
func (r *Reader) Packets(size int) io.Reader {
	p := &packets{reader: r, size: size, full: make(chan packet, packetsAhead), empty: make(chan []byte, packetsAhead)}
	for range packetsAhead {
		p.empty <- nil // made when first needed: a small image needs fewer
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.content == nil {
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
	err := r.closeFile()
	r.ahead.Wait()
	if err != nil {
		return fmt.Errorf("closing after %s: %w", r.doing, err)
	}
	return nil
}

func (r *Reader) closeFile() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file.stream == nil {
		return nil
	}
	if closer, ok := r.content.(io.Closer); ok {
		_ = closer.Close() // it only gives buffers back
	}
	err := r.file.stream.Close()
	r.file.stream, r.content = nil, nil
	if r.err == nil {
		r.err = transient(r.doing, os.ErrClosed)
	}
	return err
}

// open recognises what the file is, by its first bytes, and has the content
// begin there.
func (r *Reader) open() error {
	magic := make([]byte, longestMagic)
	n, err := io.ReadFull(r.file, magic)
	if err != nil && !r.file.ended {
		return err
	}
	whole := io.MultiReader(bytes.NewReader(magic[:n]), r.file)
	r.packing = packingOf(magic[:n])
	size := r.file.size
	if r.packing.open == nil {
		r.content = whole
	} else {
		size = r.packing.size(magic[:n])
		if r.content, err = r.packing.open(whole); err != nil {
			return r.unpackingFailed(err)
		}
	}
	return r.readHeader(size)
}

// readHeader reads the content's first bytes and keeps them for Read. size is
// the content's length in bytes, -1 when it is not known.
func (r *Reader) readHeader(size int64) error {
	first := make([]byte, HeaderLength)
	n, err := io.ReadFull(r.content, first)
	ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !ended && !r.file.ended {
		if r.packing.open != nil {
			return r.unpackingFailed(err)
		}
		return err
	}
	var bad error
	if r.header, bad = ParseHeader(first[:n], size); bad != nil {
		if r.packing.open != nil {
			bad = fmt.Errorf("in a file compressed with %s: %w", r.packing.name, bad)
		}
		return permanent(r.doing, bad, "An image must be a qcow2 or raw disk; give source and sha256 of one in the provider's images.")
	}
	r.left = plausibleLength(r.header)
	if r.packing.open == nil && r.file.ended && !errors.Is(r.file.err, io.EOF) {
		r.err = r.file.err // of a wrong image, nothing is handed out
		return nil
	}
	r.content = &rest{Reader: io.MultiReader(bytes.NewReader(first[:n]), r.content), of: r.content}
	return nil
}

// rest is a reader that was begun, closed as what it goes on from.
type rest struct {
	io.Reader
	of io.Reader
}

func (r *rest) Close() error {
	if closer, ok := r.of.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// finishFile reads what follows the compressed data, so that the checksum is
// that of the whole file. io.EOF is its yes.
func (r *Reader) finishFile() error {
	if _, err := io.Copy(io.Discard, r.file); err != nil {
		return err
	}
	return io.EOF
}

// unpackingFailed says why a file could not be unpacked: most often because it
// is not the file that was wanted, which its checksum tells.
func (r *Reader) unpackingFailed(cause error) error {
	if end := r.finishFile(); !errors.Is(end, io.EOF) {
		return end
	}
	if errors.Is(cause, io.ErrUnexpectedEOF) {
		cause = errors.New("it ends in the middle")
	}
	return permanent(r.doing, fmt.Errorf("unpacking it with %s: %w", r.packing.name, cause),
		"The file has the checksum that was asked for and is damaged all the same: its publisher has to mend it.")
}
