package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// roundTripper answers requests without a network, so that time in these
// tests is synctest's and passes at once.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// silence is a body that sends nothing until its request ends.
type silence struct{ ctx context.Context }

func (s silence) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

// live is a body that ends with its request, as a connection does.
type live struct {
	ctx context.Context
	io.Reader
}

func (l live) Read(p []byte) (int, error) {
	if err := l.ctx.Err(); err != nil {
		return 0, err
	}
	return l.Reader.Read(p)
}

func reply(status int, body io.Reader, length int) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(body), ContentLength: int64(length)}
}

func TestServerThatFallsSilentIsTransientAfterTheStallTimeout(t *testing.T) {
	content := sample(100_000)
	tests := map[string]struct {
		timeout, want time.Duration
		answer        roundTripper
	}{
		"in the middle": {0, time.Minute, func(r *http.Request) (*http.Response, error) {
			return reply(200, io.MultiReader(bytes.NewReader(content[:50_000]), silence{r.Context()}), 100_000), nil
		}},
		"within the image's header": {5 * time.Second, 5 * time.Second, func(r *http.Request) (*http.Response, error) {
			return reply(200, io.MultiReader(bytes.NewReader(content[:50]), silence{r.Context()}), 100_000), nil
		}},
		"before its answer": {5 * time.Second, 5 * time.Second, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				started := time.Now()
				err := readAll(t.Context(), Source{Location: "https://host/a?token=s3cret", SHA256: sum(content),
					Client: &http.Client{Transport: test.answer, Timeout: time.Second}, StallTimeout: test.timeout})
				wantFault(t, err, egress.ErrTransient, "sent nothing for "+test.want.String(), "https://host/a?...")
				wantNoSecret(t, err)
				if waited := time.Since(started); waited != test.want {
					t.Errorf("gave up after %s, want %s", waited, test.want)
				}
			})
		})
	}
}

func TestSlowConsumerIsNoStall(t *testing.T) {
	content := sample(100_000)
	synctest.Test(t, func(t *testing.T) {
		r, err := Source{Location: "https://host/a", SHA256: sum(content), Client: &http.Client{Transport: roundTripper(
			func(r *http.Request) (*http.Response, error) {
				return reply(200, live{r.Context(), bytes.NewReader(content)}, 100_000), nil
			})}}.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		for {
			_, err := r.Read(make([]byte, 10_000))
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatalf("Read: %v", err)
			}
			<-time.After(time.Hour)
		}
	})
}

func TestWaitsBetweenTriesDoubleAndHeedTheServer(t *testing.T) {
	tests := map[string]struct {
		retryAfter string
		want       []time.Duration
	}{
		"by itself":           {"", []time.Duration{0, time.Second, 3 * time.Second}},
		"as the server asks":  {"10", []time.Duration{0, 10 * time.Second, 20 * time.Second}},
		"but within reason":   {"3600", []time.Duration{0, 30 * time.Second, time.Minute}},
		"and with no seconds": {"Fri, 31 Dec 1999 23:59:59 GMT", []time.Duration{0, time.Second, 3 * time.Second}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				started := time.Now()
				var asked []time.Duration
				err := readAll(t.Context(), Source{Location: "https://host/a", SHA256: sum(nil), Client: &http.Client{Transport: roundTripper(
					func(*http.Request) (*http.Response, error) {
						asked = append(asked, time.Since(started))
						resp := reply(503, http.NoBody, 0)
						resp.Header.Set("Retry-After", test.retryAfter)
						return resp, nil
					})}})
				wantFault(t, err, egress.ErrTransient, "503")
				if len(asked) != len(test.want) || asked[1] != test.want[1] || asked[2] != test.want[2] {
					t.Errorf("asked after %v, want %v", asked, test.want)
				}
			})
		})
	}
}

func TestEndedContextEndsTheWaitForAnotherTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		err := readAll(ctx, Source{Location: "https://host/a", SHA256: sum(nil), Client: &http.Client{Transport: roundTripper(
			func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") })}})
		wantFault(t, err, egress.ErrTransient, "deadline exceeded")
		if waited := time.Since(started); waited != 500*time.Millisecond {
			t.Errorf("returned after %s, want 500ms", waited)
		}
	})
}

// readAll opens and reads an image that is expected to fail.
func readAll(ctx context.Context, s Source) error {
	r, err := s.Open(ctx)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close())
}
