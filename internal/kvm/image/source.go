// Package image is where a base image comes from and what it is: it opens an
// image at a URL or path, recognises its format and virtual size from its own
// header, and hands out its bytes while it verifies their checksum. It knows
// nothing of the host the image goes to.
package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// What a zero Source does.
const (
	DefaultStallTimeout = time.Minute
	DefaultRetryDelay   = time.Second
)

// attribute is the attribute that every fault of an image belongs to.
const attribute = "kvm.image"

// Source is an image at a place.
type Source struct {
	// Location is an http:// or https:// URL, a file:// URL, or a path; see
	// ParseLocation.
	Location string
	// SHA256 is the checksum of the file at Location, as 64 hexadecimal
	// digits. It is required.
	SHA256 string
	// Client does the requests; nil for a client with http.DefaultTransport,
	// which honours the proxy variables of the environment. Its CheckRedirect
	// and Timeout are not used: redirects and stalls are watched here.
	Client *http.Client
	// StallTimeout is how long a server may send nothing while we wait for
	// it; DefaultStallTimeout when zero.
	StallTimeout time.Duration
	// RetryDelay is the wait before the first repetition of a failed or
	// broken request; each further wait is twice as long. DefaultRetryDelay
	// when zero.
	RetryDelay time.Duration
}

// Open starts reading the image and recognises it. ctx bounds the Reader too:
// when it ends, a Read that waits for the server returns at once. The caller
// must close the Reader.
//
// Errors are *egress.Fault. ErrPermanent: the location or checksum is
// malformed, a local file cannot be read, the server refuses (4xx), its
// certificate is not trusted, it redirects from https to http, or the file is
// no disk image machines can start from. ErrTransient: the server cannot be
// reached, or answers 408, 425, 429 or 5xx, each tried three times, or does
// not answer at all.
func (s Source) Open(ctx context.Context) (*Reader, error) {
	at, err := parseLocation(s.Location)
	if err != nil {
		return nil, permanent("reading an image", err, "Correct the source of the image in the provider's images.")
	}
	doing := "reading image " + at.String()
	if sum, err := hex.DecodeString(s.SHA256); err != nil || len(sum) != sha256.Size {
		return nil, permanent(doing, errors.New("its sha256 is not 64 hexadecimal digits"),
			"Give the checksum that the image's publisher names, or that of sha256sum.")
	}

	ctx, cancel := context.WithCancelCause(ctx)
	var stream io.ReadCloser
	var size int64
	if at.url != nil {
		stream, size, err = s.openURL(ctx, at.url, doing)
	} else {
		stream, size, err = openFile(ctx, at.path, doing)
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	r := &Reader{ctx: ctx, cancel: cancel, doing: doing,
		file: &verifiedFile{doing: doing, size: size, want: strings.ToLower(s.SHA256), stream: stream, hash: sha256.New()}}
	if err := r.open(); err != nil {
		_ = r.Close() // err says more than a failure to close
		return nil, err
	}
	return r, nil
}

// openFile opens a local image. Only a regular file has a length to trust and
// never blocks.
func openFile(ctx context.Context, path, doing string) (io.ReadCloser, int64, error) {
	const remedy = "The path is one on the machine that runs Terraform, and relative ones start at the working directory."
	// Before opening: that alone blocks on a named pipe.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		what := "it is not a regular file"
		if info.IsDir() {
			what = "it is a directory"
		}
		return nil, 0, permanent(doing, errors.New(what), remedy)
	}
	var file *os.File
	if err == nil {
		file, err = os.Open(path)
	}
	if err != nil {
		if inner := new(fs.PathError); errors.As(err, &inner) {
			err = inner.Err // the path is in doing already
		}
		return nil, 0, permanent(doing, err, remedy)
	}
	return &localFile{ctx: ctx, doing: doing, File: file, left: info.Size()}, info.Size(), nil
}

// localFile reads exactly as many bytes as the file had when it was opened.
type localFile struct {
	*os.File
	ctx   context.Context
	doing string
	left  int64
}

func (f *localFile) Read(p []byte) (int, error) {
	if f.ctx.Err() != nil {
		return 0, transient(f.doing, context.Cause(f.ctx))
	}
	if f.left == 0 {
		return 0, io.EOF
	}
	n, err := f.File.Read(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	if n > 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		return 0, transient(f.doing, fmt.Errorf("the file became %d bytes shorter while it was read", f.left))
	}
	return 0, transient(f.doing, err)
}

func permanent(doing string, cause error, remedy string) *egress.Fault {
	return &egress.Fault{Kind: egress.ErrPermanent, Doing: doing, Cause: cause, Remedy: remedy, Attribute: attribute}
}

func transient(doing string, cause error) *egress.Fault {
	return &egress.Fault{Kind: egress.ErrTransient, Doing: doing, Cause: cause, Attribute: attribute,
		Remedy: "Run the same command again; what was read so far is thrown away."}
}
