package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxRedirects  = 10
	maxRetryAfter = 30 * time.Second // what we let a server make us wait
)

// errStalled ends a request whose server sends nothing.
var errStalled = errors.New("the server sent nothing")

// requester sends single requests and watches that they get on.
type requester struct {
	client *http.Client // does not follow redirects
	stall  time.Duration
}

// response is a response that carries the image or a part of it.
type response struct {
	status int
	header http.Header
	length int64 // of the body, -1 when unknown
	body   io.ReadCloser
}

// do sends a GET with these headers and follows redirects, but not from https
// to http: that would give up what the https of the configuration promised.
// The response is a 200, or a 206 to a request with a Range; closing its body
// ends the request. The headers of u's own user information do not go to
// other hosts.
func (r requester) do(ctx context.Context, u *url.URL, header http.Header) (*response, error) {
	for range maxRedirects + 1 {
		resp, err := r.send(ctx, u, header)
		if err != nil {
			return nil, err
		}
		switch resp.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			_ = resp.Body.Close() // nothing in it
			if u, err = redirected(u, resp.Header.Get("Location")); err != nil {
				return nil, err
			}
			continue
		}
		if err := acceptable(resp, u, header.Get("Range") != ""); err != nil {
			_ = resp.Body.Close() // err says why
			return nil, err
		}
		return &response{resp.StatusCode, resp.Header, resp.ContentLength, resp.Body}, nil
	}
	return nil, &refusal{fmt.Sprintf("the server redirects more than %d times", maxRedirects), "Use the address of the file itself."}
}

// send sends one request. The time until the response's header counts as a
// stall like any other.
func (r requester) send(ctx context.Context, u *url.URL, header http.Header) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stalled := func() { cancel(fmt.Errorf("%w for %s", errStalled, r.stall)) }
	timer := time.AfterFunc(r.stall, stalled)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		timer.Stop()
		cancel(nil)
		return nil, scrub(err)
	}
	req.Header = header.Clone()
	// The checksum is of the file as it is; asking for no encoding also keeps
	// net/http from undoing one behind our back.
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "terraform-provider-egressproxy")
	resp, err := r.client.Do(req)
	timer.Stop()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		cancel(nil)
		return nil, scrub(err)
	}
	resp.Body = &watchedBody{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, timer: timer, stall: r.stall}
	return resp, nil
}

// watchedBody ends a Read that gets nothing for too long. Only the time spent
// in Read counts, so a slow consumer is no stall.
type watchedBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.stall)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// redirected resolves a redirect.
func redirected(from *url.URL, target string) (*url.URL, error) {
	const remedy = "Use the address that the server redirects to, or another source."
	to, err := from.Parse(target)
	switch {
	case target == "" || err != nil || to.Hostname() == "":
		return nil, &refusal{fmt.Sprintf("%s redirects to a malformed address", redactURL(from)), remedy}
	case to.Scheme != "https" && to.Scheme != "http":
		return nil, &refusal{fmt.Sprintf("%s redirects to %s, which is not http", redactURL(from), redactURL(to)), remedy}
	case from.Scheme == "https" && to.Scheme == "http":
		return nil, &refusal{fmt.Sprintf("%s redirects from https to %s, which anyone on the way could change",
			redactURL(from), redactURL(to)), remedy}
	}
	return to, nil
}

// acceptable tells whether a response carries the image or a part of it.
func acceptable(resp *http.Response, from *url.URL, part bool) error {
	if resp.StatusCode != http.StatusOK && (!part || resp.StatusCode != http.StatusPartialContent) {
		return &statusError{code: resp.StatusCode, from: redactURL(from), after: retryAfter(resp.Header)}
	}
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return &refusal{fmt.Sprintf("%s answered with content-encoding %q, though none was asked for", redactURL(from), encoding),
			"Have the server send the file as it is."}
	}
	return nil
}

// statusError is a response other than success.
type statusError struct {
	code  int
	from  string // after redirects
	after time.Duration
}

func (e *statusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("%s answered %d %s", e.from, e.code, http.StatusText(e.code)))
}

// temporary tells whether the status is about the moment, not the request.
// 416 comes only when a file shrinks under a resumed download.
func (e *statusError) temporary() bool {
	switch e.code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusRequestedRangeNotSatisfiable:
		return true
	}
	return e.code >= 500
}

func (e *statusError) remedy() string {
	switch e.code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return "The server wants other credentials, or a signed address has expired. Correct the source of the image in the provider's images."
	case http.StatusNotFound, http.StatusGone:
		return "There is no such file. Correct the source of the image in the provider's images; publishers remove old releases."
	}
	return "Correct the source of the image in the provider's images."
}

// refusal is what we do not accept from a server.
type refusal struct{ text, remedy string }

func (e *refusal) Error() string { return e.text }

// retryAfter is the wait a server asks for, within reason; dates, which it
// may give instead of seconds, are left to our own delay.
func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.ParseUint(header.Get("Retry-After"), 10, 16)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}

// scrub takes secrets from the text of an error of net/http and tells those
// that repeating cannot help. What it wraps stays visible to errors.Is.
func scrub(err error) error {
	if outer := new(url.Error); errors.As(err, &outer) {
		err = outer.Err // the address is named by us, redacted
	}
	text := redact(err.Error())
	switch { // texts that quote what no pattern can find a secret in
	case strings.Contains(text, "failed to parse Location header"):
		return &refusal{"the server redirects to a malformed address", "Use another source."}
	case strings.Contains(text, "invalid proxy address"):
		return &refusal{"the proxy address in the environment is malformed", "Correct HTTPS_PROXY, HTTP_PROXY or NO_PROXY where Terraform runs."}
	}
	if bad := new(tls.CertificateVerificationError); errors.As(err, &bad) {
		return &refusal{text, "The server's certificate is not trusted on the machine that runs Terraform. Install its authority there, or use another source."}
	}
	if text == err.Error() {
		return err
	}
	return &scrubbed{text, err}
}

// scrubbed is an error with another text.
type scrubbed struct {
	text string
	err  error
}

func (e *scrubbed) Error() string { return e.text }
func (e *scrubbed) Unwrap() error { return e.err }
