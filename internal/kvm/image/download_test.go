package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// server is an image server whose every answer a test can choose.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

// serve starts a server; answer gets the number of the request, from 1.
func serve(t *testing.T, start func(http.Handler) *httptest.Server, answer func(n int, w http.ResponseWriter, r *http.Request)) *server {
	t.Helper()
	s := &server{}
	s.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r)
		n := len(s.requests)
		s.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) seen() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// source is the image at path on the server.
func (s *server) source(path string, content []byte) Source {
	return Source{Location: s.URL + path, SHA256: sum(content), Client: s.Client(), RetryDelay: time.Millisecond}
}

// plain and secure start a server that keeps its log to itself.
func plain(h http.Handler) *httptest.Server  { s := quiet(h); s.Start(); return s }
func secure(h http.Handler) *httptest.Server { s := quiet(h); s.StartTLS(); return s }

func quiet(h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	return s
}

// part serves content as a file server does, with ranges and an entity tag.
func part(content []byte, tag string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

func flush(w http.ResponseWriter) {
	if err := http.NewResponseController(w).Flush(); err != nil {
		panic(err)
	}
}

// broken sends the first sent bytes of content and drops the connection.
func broken(w http.ResponseWriter, content []byte, sent int, header http.Header) {
	for name, values := range header {
		w.Header()[name] = values
	}
	if header.Get("Transfer-Encoding") == "" {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	}
	_, _ = w.Write(content[:sent])
	flush(w)
	panic(http.ErrAbortHandler)
}

func TestURLIsReadWholeAndVerified(t *testing.T) {
	content := sample(500_000)
	for name, start := range map[string]func(http.Handler) *httptest.Server{"http": plain, "https": secure} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, start, func(_ int, w http.ResponseWriter, r *http.Request) { part(content, `"1"`)(w, r) })
			r := open(t, s.source("/a.qcow2", content))
			if r.Size() != 500_000 || r.Header().VirtualSize != 10<<30 {
				t.Errorf("Size = %d, Header = %+v", r.Size(), r.Header())
			}
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, content) || r.SHA256() != sum(content) {
				t.Errorf("read %d bytes with sha256 %s, %v", len(got), r.SHA256(), err)
			}
			if n := len(s.seen()); n != 1 {
				t.Errorf("took %d requests, want 1", n)
			}
		})
	}
}

func TestReplyWithoutLengthIsReadWhole(t *testing.T) {
	for _, length := range []int{500_000, 5_000} {
		content := sample(length)
		s := serve(t, plain, func(_ int, w http.ResponseWriter, _ *http.Request) {
			flush(w)
			_, _ = w.Write(content)
		})
		r := open(t, s.source("/a.qcow2", content))
		if r.Size() != -1 {
			t.Errorf("Size = %d, want -1", r.Size())
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
			t.Errorf("read %d bytes of %d, %v", len(got), length, err)
		}
	}
}

func TestReplyWithoutLengthAndWrongChecksumHasNoCleanEnd(t *testing.T) {
	s := serve(t, plain, func(_ int, w http.ResponseWriter, _ *http.Request) {
		flush(w)
		_, _ = w.Write(sample(100_000))
	})
	r := open(t, s.source("/a.qcow2", nil))
	_, err := io.ReadAll(r)
	wantFault(t, err, egress.ErrPermanent, sum(sample(100_000)), sum(nil))
}

func TestRefusedRequestIsPermanentAndNamesStatusAndURL(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 410, 451, 204} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			s := serve(t, plain, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			source := s.source("/a.qcow2?token=s3cret", nil)
			source.Location = strings.Replace(source.Location, "://", "://user:hunter2@", 1)
			_, err := source.Open(t.Context())
			wantFault(t, err, egress.ErrPermanent, strconv.Itoa(status), s.URL+"/a.qcow2?...")
			wantNoSecret(t, err)
			if n := len(s.seen()); n != 1 {
				t.Errorf("asked %d times, want once", n)
			}
			if _, password, _ := s.seen()[0].BasicAuth(); password != "hunter2" {
				t.Errorf("the server got the password %q", password)
			}
		})
	}
}

func TestOverloadedServerIsAskedAgain(t *testing.T) {
	content := sample(100_000)
	for _, status := range []int{408, 425, 429, 500, 502, 503, 504} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			s := serve(t, plain, func(n int, w http.ResponseWriter, r *http.Request) {
				if n < 3 {
					w.WriteHeader(status)
					return
				}
				part(content, `"1"`)(w, r)
			})
			if got, err := io.ReadAll(open(t, s.source("/a", content))); err != nil || len(got) != len(content) {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
		})
	}
}

func TestServerThatStaysOverloadedIsTransient(t *testing.T) {
	s := serve(t, plain, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	_, err := s.source("/a", nil).Open(t.Context())
	wantFault(t, err, egress.ErrTransient, "503 Service Unavailable", s.URL+"/a")
	if n := len(s.seen()); n != 3 {
		t.Errorf("asked %d times, want 3", n)
	}
}

func TestUnreachableServerIsTransient(t *testing.T) {
	s := serve(t, plain, func(int, http.ResponseWriter, *http.Request) {})
	source := s.source("/a?token=s3cret", nil)
	s.Close()
	_, err := source.Open(t.Context())
	wantFault(t, err, egress.ErrTransient, "connection refused", s.URL+"/a?...")
	wantNoSecret(t, err)
}

func TestUntrustedCertificateIsPermanent(t *testing.T) {
	s := serve(t, secure, func(int, http.ResponseWriter, *http.Request) {})
	source := s.source("/a?token=s3cret", nil)
	source.Client = &http.Client{Transport: &http.Transport{}}
	_, err := source.Open(t.Context())
	wantFault(t, err, egress.ErrPermanent, "certificate", s.URL+"/a?...")
	wantNoSecret(t, err)
}

func TestRedirectsAreFollowedButNeverToLessThanHTTPS(t *testing.T) {
	content := sample(100_000)
	insecure := serve(t, plain, func(_ int, w http.ResponseWriter, r *http.Request) { part(content, `"1"`)(w, r) })
	tls := serve(t, secure, func(_ int, w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/a":
			http.Redirect(w, r, "/b?token=s3cret", http.StatusFound)
		case "/b":
			part(content, `"1"`)(w, r)
		case "/gone":
			http.Redirect(w, r, "/none?token=s3cret", http.StatusFound)
		case "/down":
			http.Redirect(w, r, insecure.URL+"/a?token=s3cret", http.StatusMovedPermanently)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusTemporaryRedirect)
		case "/ftp":
			http.Redirect(w, r, "ftp://user:hunter2@host/a", http.StatusFound)
		case "/malformed":
			w.Header().Set("Location", "http://user:hunter2@host:s3cret/%zz")
			w.WriteHeader(http.StatusFound)
		case "/nowhere":
			w.WriteHeader(http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	})
	if got, err := io.ReadAll(open(t, tls.source("/a", content))); err != nil || len(got) != len(content) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	for path, want := range map[string]string{
		"/gone":      "/none?... answered 404",
		"/down":      "redirects from https to " + insecure.URL + "/a?...",
		"/loop":      "redirects more than 10 times",
		"/ftp":       "ftp://host/a, which is not http",
		"/malformed": "malformed address",
		"/nowhere":   "malformed address",
	} {
		t.Run(path, func(t *testing.T) {
			_, err := tls.source(path, nil).Open(t.Context())
			wantFault(t, err, egress.ErrPermanent, want)
			wantNoSecret(t, err)
		})
	}
	if n := len(insecure.seen()); n != 0 {
		t.Errorf("%d requests went out over http", n)
	}
}

func TestRedirectTakesNoCredentialsToAnotherHost(t *testing.T) {
	content := sample(100_000)
	other := serve(t, plain, func(_ int, w http.ResponseWriter, r *http.Request) { part(content, `"1"`)(w, r) })
	first := serve(t, plain, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusFound)
	})
	source := first.source("/a", content)
	source.Location = strings.Replace(source.Location, "://", "://user:hunter2@", 1)
	open(t, source)
	if got := other.seen()[0].Header.Get("Authorization"); got != "" {
		t.Errorf("the other host got the header Authorization: %s", got)
	}
}

func TestMalformedProxyIsPermanentAndNotShown(t *testing.T) {
	client := &http.Client{Transport: &http.Transport{Proxy: func(*http.Request) (*url.URL, error) {
		return nil, fmt.Errorf("invalid proxy address %q: no good", "http://user:hunter 2s3cret@proxy")
	}}}
	_, err := Source{Location: "http://192.0.2.1/a", SHA256: sum(nil), Client: client}.Open(t.Context())
	wantFault(t, err, egress.ErrPermanent, "proxy address in the environment is malformed")
	wantNoSecret(t, err)
}

func TestEncodedReplyIsRefused(t *testing.T) {
	s := serve(t, plain, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
	})
	_, err := s.source("/a", nil).Open(t.Context())
	wantFault(t, err, egress.ErrPermanent, `content-encoding "gzip"`)
	if got := s.seen()[0].Header.Get("Accept-Encoding"); got != "identity" {
		t.Errorf("asked for the encoding %q", got)
	}
}

func TestLoginPageInsteadOfTheImageIsPermanent(t *testing.T) {
	s := serve(t, plain, func(_ int, w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html><title>Log in</title></html>")
	})
	_, err := s.source("/a.qcow2", nil).Open(t.Context())
	wantFault(t, err, egress.ErrPermanent, "web page", s.URL+"/a.qcow2")
}

func TestBrokenDownloadIsResumed(t *testing.T) {
	content := sample(400_000)
	tests := map[string]struct {
		header  http.Header // of the first reply
		ifRange string
		rest    func(w http.ResponseWriter, r *http.Request)
	}{
		"with an entity tag":                {http.Header{"Etag": {`"1"`}, "Last-Modified": {"x"}}, `"1"`, part(content, `"1"`)},
		"with a date":                       {http.Header{"Last-Modified": {"Mon, 01 Jan 2024 00:00:00 GMT"}}, "Mon, 01 Jan 2024 00:00:00 GMT", part(content, "")},
		"with a weak tag":                   {http.Header{"Etag": {`W/"1"`}}, "", part(content, `W/"1"`)},
		"of unknown length":                 {http.Header{"Transfer-Encoding": {"chunked"}, "Etag": {`"1"`}}, `"1"`, part(content, `"1"`)},
		"by a mirror with a tag of its own": {http.Header{"Etag": {`"1"`}}, `"1"`, part(content, `"2"`)},
		"without ranges": {nil, "", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			_, _ = w.Write(content)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := serve(t, plain, func(n int, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					broken(w, content, 250_000, test.header)
				}
				test.rest(w, r)
			})
			got, err := io.ReadAll(open(t, s.source("/a", content)))
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("read %d bytes of %d, %v", len(got), len(content), err)
			}
			second := s.seen()[1].Header
			var from int
			if _, err := fmt.Sscanf(second.Get("Range"), "bytes=%d-", &from); err != nil || from == 0 || from > 250_000 {
				t.Errorf("resumed with Range: %q", second.Get("Range"))
			}
			if second.Get("If-Range") != test.ifRange {
				t.Errorf("resumed with If-Range: %q, want %q", second.Get("If-Range"), test.ifRange)
			}
		})
	}
}

func TestDownloadThatBreaksWithinTheHeaderIsResumed(t *testing.T) {
	content := sample(100_000)
	s := serve(t, plain, func(n int, w http.ResponseWriter, r *http.Request) {
		if n == 1 {
			broken(w, content, 100, nil)
		}
		part(content, `"1"`)(w, r)
	})
	if got, err := io.ReadAll(open(t, s.source("/a", content))); err != nil || !bytes.Equal(got, content) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
}

func TestDownloadThatKeepsBreakingIsTransient(t *testing.T) {
	content := sample(400_000)
	s := serve(t, plain, func(_ int, w http.ResponseWriter, _ *http.Request) { broken(w, content, 250_000, nil) })
	_, err := io.ReadAll(open(t, s.source("/a", content)))
	wantFault(t, err, egress.ErrTransient, "of 400000 bytes", "unexpected EOF", s.URL+"/a")
	if n := len(s.seen()); n != 1+maxResumes {
		t.Errorf("took %d requests, want %d", n, 1+maxResumes)
	}
}

func TestDownloadCannotBeResumedFromAnotherFile(t *testing.T) {
	content := sample(400_000)
	tests := map[string]struct {
		kind   error
		want   string
		answer func(w http.ResponseWriter, r *http.Request)
	}{
		"gone":          {egress.ErrPermanent, "404", http.NotFound},
		"shrunk":        {egress.ErrTransient, "416", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(416) }},
		"shorter":       {egress.ErrTransient, "changed from 400000 to 90000 bytes", part(content[:90_000], "")},
		"longer":        {egress.ErrTransient, "changed from 400000 to 400001 bytes", part(append(sample(400_000), 0), "")},
		"longer, whole": {egress.ErrTransient, "changed from 400000 to 400001 bytes", part(append(sample(400_000), 0), `"2"`)},
		"replaced":      {egress.ErrPermanent, "sha256", part(make([]byte, 400_000), "")},
		"another part": {egress.ErrTransient, "sent those from 7", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 7-399999/400000")
			w.WriteHeader(http.StatusPartialContent)
		}},
		"a malformed part": {egress.ErrTransient, `content-range "nonsense"`, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "nonsense")
			w.WriteHeader(http.StatusPartialContent)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := serve(t, plain, func(n int, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					broken(w, content, 250_000, http.Header{"Etag": {`"1"`}})
				}
				test.answer(w, r)
			})
			_, err := io.ReadAll(open(t, s.source("/a", content)))
			wantFault(t, err, test.kind, test.want)
		})
	}
}

func TestEndedContextFreesAReadThatWaitsForTheServer(t *testing.T) {
	content := sample(100_000)
	for name, end := range map[string]func(*Reader, context.CancelFunc){
		"cancel": func(_ *Reader, cancel context.CancelFunc) { cancel() },
		"Close":  func(r *Reader, _ context.CancelFunc) { _ = r.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, plain, func(_ int, w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "100000")
				_, _ = w.Write(content[:60_000])
				flush(w)
				<-r.Context().Done() // the client hung up
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := s.source("/a", content).Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			packets := r.Packets(30_000)
			if _, err := io.ReadFull(packets, make([]byte, 60_000)); err != nil {
				t.Fatal(err)
			}
			go end(r, cancel)
			_, err = packets.Read(make([]byte, 1000)) // hangs for ever when the end frees nobody
			if !errors.Is(err, egress.ErrTransient) {
				t.Errorf("Read = %v", err)
			}
			if err := r.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

func wantNoSecret(t *testing.T, err error) {
	t.Helper()
	var fault *egress.Fault
	text := fmt.Sprintf("%v %+v", err, err)
	if errors.As(err, &fault) {
		text += fault.Remedy + fault.Doing
	}
	for _, secret := range []string{"hunter", "s3cret"} {
		if strings.Contains(text, secret) {
			t.Errorf("the error shows a secret: %s", text)
		}
	}
}
