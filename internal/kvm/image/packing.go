package image

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// packing is a way in which a file is compressed. Its zero value is none.
type packing struct {
	name  string
	magic string
	// open gives the content of a compressed stream.
	open func(io.Reader) (io.Reader, error)
	// size reads the content's length in bytes from the stream's first bytes; -1
	// where they do not tell.
	size func(first []byte) int64
}

// packings are known by the first bytes of their files: RFC 1952 (gzip), the
// .xz file format 1.1.0, RFC 8878 (zstd), and bzip2's own manual.
var packings = []packing{
	{"gzip", "\x1f\x8b\x08", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }, unknownSize},
	{"xz", "\xfd7zXZ\x00", func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) }, unknownSize},
	{"zstd", "\x28\xb5\x2f\xfd", openZstd, zstdSize},
	{"bzip2", "BZh", func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }, unknownSize},
}

// longestMagic is how many first bytes packingOf and its size want.
const longestMagic = zstd.HeaderMaxSize

func packingOf(first []byte) packing {
	for _, p := range packings {
		if bytes.HasPrefix(first, []byte(p.magic)) {
			return p
		}
	}
	return packing{}
}

func unknownSize([]byte) int64 { return -1 }

// zstdWindow is the largest window in bytes that a file may make us hold: what
// zstd's own tool takes unasked (its man page, --memory).
const zstdWindow = 128 << 20

func openZstd(r io.Reader) (io.Reader, error) {
	decoder, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
	if err != nil {
		return nil, err
	}
	return decoder.IOReadCloser(), nil
}

// zstdSize reads what a frame's header says of its content. A file of several
// frames has more, and is refused when it goes on.
func zstdSize(first []byte) int64 {
	var header zstd.Header
	if err := header.Decode(first); err != nil || !header.HasFCS || header.FrameContentSize > 1<<56 {
		return -1
	}
	return int64(header.FrameContentSize)
}

// plausibleLength is how long the file of an image can be, in bytes. qcow2 has
// tables beside its clusters, and keeps snapshots' clusters too, of which an
// image to start machines from has few.
func plausibleLength(h Header) int64 {
	const tables = 64 << 20
	if h.Format == Raw {
		return int64(h.VirtualSize)
	}
	return 2*int64(min(h.VirtualSize, 1<<60)) + tables
}
