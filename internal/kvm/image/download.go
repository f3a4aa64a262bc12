package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

const (
	maxTries   = 3 // of one request
	maxResumes = 5 // of one download
)

// download is the body of an image at a URL, put together from as many
// responses as it takes.
type download struct {
	ctx   context.Context
	get   requester
	url   *url.URL
	doing string
	delay time.Duration

	body      io.ReadCloser // nil after a break
	offset    int64
	size      int64  // -1 when unknown
	validator string // for If-Range, or empty
	resumes   int
	complete  bool
}

// openURL requests the image and gives its body and size.
func (s Source) openURL(ctx context.Context, u *url.URL, doing string) (io.ReadCloser, int64, error) {
	client := http.Client{}
	if s.Client != nil {
		client = *s.Client
	}
	client.Timeout = 0
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	d := &download{
		ctx: ctx, url: u, doing: doing,
		get:   requester{client: &client, stall: cmp.Or(s.StallTimeout, DefaultStallTimeout)},
		delay: cmp.Or(s.RetryDelay, DefaultRetryDelay),
	}
	resp, err := d.request()
	if err != nil {
		return nil, 0, err
	}
	d.body, d.size, d.validator = resp.body, resp.length, validator(resp.header)
	return d, d.size, nil
}

// Read reads on where the last Read ended, over a new connection if need be.
func (d *download) Read(p []byte) (int, error) {
	for {
		if d.complete {
			return 0, io.EOF
		}
		if d.body == nil {
			if err := d.resume(); err != nil {
				return 0, err
			}
			continue
		}
		n, err := d.body.Read(p)
		d.offset += int64(n)
		if err != nil {
			if fatal := d.ended(err); fatal != nil {
				return 0, fatal
			}
		}
		if n > 0 {
			return n, nil
		}
	}
}

// Close ends the download.
func (d *download) Close() error {
	if d.body == nil {
		return nil
	}
	return d.body.Close()
}

// ended judges the error that a response's body ended with: the image is
// complete, or can be resumed, or neither, which is an error.
func (d *download) ended(cause error) error {
	if errors.Is(cause, io.EOF) && (d.size < 0 || d.offset >= d.size) {
		d.complete = true
		return nil
	}
	_ = d.body.Close() // broken anyway
	d.body = nil
	if errors.Is(cause, io.EOF) {
		cause = io.ErrUnexpectedEOF
	}
	if d.ctx.Err() == nil && !errors.Is(cause, errStalled) && d.resumes < maxResumes {
		return nil
	}
	return transient(d.doing, fmt.Errorf("the connection ended after %d of %s bytes: %w", d.offset, length(d.size), scrub(cause)))
}

// resume asks for the rest of the image (RFC 9110, section 14). It leaves the
// body nil when it broke again and may be resumed once more. A server that
// answers with the whole of it, since it knows no ranges or another mirror
// answered with another entity tag, is read up to the place of the break; that
// the pieces belong together is for the checksum to tell.
func (d *download) resume() error {
	if err := pause(d.ctx, d.delay<<d.resumes); err != nil {
		return transient(d.doing, err)
	}
	d.resumes++
	resp, err := d.request()
	if err != nil {
		return err
	}
	start, total := int64(0), resp.length
	if resp.status == http.StatusPartialContent {
		start, total, err = contentRange(resp.header.Get("Content-Range"))
		if err == nil && start != d.offset {
			err = fmt.Errorf("asked for byte %d on, the server sent those from %d", d.offset, start)
		}
	}
	if err == nil && d.size >= 0 && total >= 0 && total != d.size {
		err = fmt.Errorf("the file changed from %d to %d bytes while it was read", d.size, total)
	}
	if err != nil {
		_ = resp.body.Close() // of no use
		return transient(d.doing, err)
	}
	d.body = resp.body
	if start < d.offset {
		if _, err := io.CopyN(io.Discard, d.body, d.offset); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return d.ended(err)
		}
	}
	return nil
}

// request gets the image from the present offset on, in a few tries.
func (d *download) request() (*response, error) {
	header := http.Header{}
	if d.offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", d.offset))
		if d.validator != "" {
			header.Set("If-Range", d.validator)
		}
	}
	for try := 1; ; try++ {
		resp, err := d.get.do(d.ctx, d.url, header)
		if err == nil {
			return resp, nil
		}
		fault := d.fault(err)
		if try == maxTries || !errors.Is(fault, egress.ErrTransient) || errors.Is(err, errStalled) || d.ctx.Err() != nil {
			return nil, fault
		}
		wait := d.delay << (try - 1)
		if status := (*statusError)(nil); errors.As(err, &status) {
			wait = max(wait, status.after)
		}
		if err := pause(d.ctx, wait); err != nil {
			return nil, transient(d.doing, err)
		}
	}
}

// fault tells apart what may pass from what will not.
func (d *download) fault(err error) *egress.Fault {
	var status *statusError
	var refused *refusal
	switch {
	case errors.As(err, &status) && !status.temporary():
		return permanent(d.doing, err, status.remedy())
	case errors.As(err, &refused):
		return permanent(d.doing, err, refused.remedy)
	default:
		return transient(d.doing, err)
	}
}

// validator is what ties a resumed download to the first response: a strong
// entity tag, or the date of a file that has no tag at all (RFC 9110, 13.1.5).
func validator(header http.Header) string {
	switch tag := header.Get("ETag"); {
	case tag == "":
		return header.Get("Last-Modified")
	case strings.HasPrefix(tag, "W/"):
		return ""
	default:
		return tag
	}
}

// contentRange reads "bytes FIRST-LAST/TOTAL"; total is -1 where it is "*".
func contentRange(value string) (start, total int64, err error) {
	malformed := fmt.Errorf("the server sent a part with the content-range %q", value)
	span, all, ok := strings.Cut(strings.TrimPrefix(value, "bytes "), "/")
	first, _, ok2 := strings.Cut(span, "-")
	if !ok || !ok2 {
		return 0, 0, malformed
	}
	if start, err = strconv.ParseInt(first, 10, 64); err != nil {
		return 0, 0, malformed
	}
	if all == "*" {
		return start, -1, nil
	}
	if total, err = strconv.ParseInt(all, 10, 64); err != nil {
		return 0, 0, malformed
	}
	return start, total, nil
}

// length writes a size for people.
func length(size int64) string {
	if size < 0 {
		return "an unknown number of"
	}
	return strconv.FormatInt(size, 10)
}

// pause waits, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
