package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// sample is a qcow2 image of n bytes with content that repeats nowhere.
func sample(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	copy(b, qcow2(3, nil)[:4096])
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// open opens an image that is expected to open, and closes it after the test.
func open(t *testing.T, s Source) *Reader {
	t.Helper()
	r, err := s.Open(t.Context())
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return r
}

// wantFault asserts what a person and the caller see of a failure.
func wantFault(t *testing.T, err, kind error, texts ...string) {
	t.Helper()
	wantText(t, err, texts...)
	var fault *egress.Fault
	if !errors.As(err, &fault) {
		t.Fatalf("error is a %T, want an *egress.Fault: %v", err, err)
	}
	if !errors.Is(err, kind) {
		t.Errorf("error %q is not of kind %q but %q", err, kind, fault.Kind)
	}
	if fault.Attribute != "kvm.image" || fault.Remedy == "" {
		t.Errorf("fault has the attribute %q and the remedy %q", fault.Attribute, fault.Remedy)
	}
}

func write(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.qcow2")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLocalFileIsReadWholeAndVerified(t *testing.T) {
	content := sample(300_000)
	path := write(t, content)
	t.Chdir(filepath.Dir(path))
	for _, location := range []string{path, "file://" + path, "image.qcow2"} {
		t.Run(location, func(t *testing.T) {
			r := open(t, Source{Location: location, SHA256: strings.ToUpper(sum(content))})
			if want := (Header{Format: QCOW2, VirtualSize: 10 << 30}); r.Header() != want || r.Size() != 300_000 {
				t.Errorf("Header = %+v, Size = %d; want %+v, 300000", r.Header(), r.Size(), want)
			}
			if r.SHA256() != "" {
				t.Errorf("SHA256 = %q before the end", r.SHA256())
			}
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("read %d bytes, %v; want the file's %d", len(got), err, len(content))
			}
			if r.SHA256() != sum(content) {
				t.Errorf("SHA256 = %s, want %s", r.SHA256(), sum(content))
			}
		})
	}
}

func TestLocalFileThatCannotBeReadIsPermanent(t *testing.T) {
	dir := t.TempDir()
	tests := map[string]struct{ path, want string }{
		"missing":        {filepath.Join(dir, "none.qcow2"), "no such file"},
		"a directory":    {dir, "directory"},
		"below a file":   {write(t, nil) + "/a", "not a directory"},
		"empty":          {write(t, nil), "image is empty"},
		"another format": {write(t, at(0, "KDMV")), "VMDK"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Source{Location: test.path, SHA256: sum(nil)}.Open(t.Context())
			wantFault(t, err, egress.ErrPermanent, "reading image "+test.path, test.want)
		})
	}
}

func TestOpenRefusesAMalformedSource(t *testing.T) {
	path := write(t, sample(100_000))
	tests := map[string]struct {
		source Source
		want   string
	}{
		"no checksum":      {Source{Location: path}, "64 hexadecimal digits"},
		"a short checksum": {Source{Location: path, SHA256: "abcd"}, "64 hexadecimal digits"},
		"a bad location":   {Source{Location: "s3://bucket/a", SHA256: sum(nil)}, "unknown scheme"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := test.source.Open(t.Context())
			wantFault(t, err, egress.ErrPermanent, test.want)
		})
	}
}

func TestWrongChecksumIsAnErrorInsteadOfTheEnd(t *testing.T) {
	content := sample(200_000)
	wrong := sum([]byte("another file"))
	path := write(t, content)
	readers := map[string]func(*Reader) io.Reader{
		"Read":    func(r *Reader) io.Reader { return r },
		"Packets": func(r *Reader) io.Reader { return r.Packets(65536) },
	}
	for name, reader := range readers {
		t.Run(name, func(t *testing.T) {
			r := open(t, Source{Location: path, SHA256: wrong})
			in := reader(r)
			got, err := io.ReadAll(in)
			wantFault(t, err, egress.ErrPermanent, sum(content), wrong, path)
			if len(got) >= len(content) {
				t.Errorf("all %d bytes came out: a consumer that counts takes the image for whole", len(got))
			}
			if n, again := in.Read(make([]byte, 10)); n != 0 || !errors.Is(again, egress.ErrPermanent) {
				t.Errorf("reading on gives %d bytes, %v; want the same error", n, again)
			}
		})
	}
}

func TestFileThatShrinksWhileItIsReadIsAnError(t *testing.T) {
	content := sample(200_000)
	path := write(t, content)
	r := open(t, Source{Location: path, SHA256: sum(content)})
	if err := os.Truncate(path, 150_000); err != nil {
		t.Fatal(err)
	}
	_, err := io.ReadAll(r)
	wantFault(t, err, egress.ErrTransient, "50000 bytes shorter")
}

func TestFileThatGrowsIsReadAsItWas(t *testing.T) {
	content := sample(200_000)
	path := write(t, content)
	r := open(t, Source{Location: path, SHA256: sum(content)})
	if err := os.Truncate(path, 250_000); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || len(got) != 200_000 {
		t.Errorf("read %d bytes, %v; want 200000", len(got), err)
	}
}

func TestEndedContextEndsTheReading(t *testing.T) {
	content := sample(200_000)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	r, err := Source{Location: write(t, content), SHA256: sum(content)}.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	packets := r.Packets(1000)
	cancel()
	_, err = io.ReadAll(packets)
	wantFault(t, err, egress.ErrTransient, "context canceled")
	_, err = io.ReadAll(r)
	wantFault(t, err, egress.ErrTransient, "context canceled")
	if err := r.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestClosedReaderReadsNoMore(t *testing.T) {
	content := sample(200_000)
	r := open(t, Source{Location: write(t, content), SHA256: sum(content)})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]io.Reader{"Read": r, "Packets": r.Packets(1000)} {
		if n, err := in.Read(make([]byte, 10)); n != 0 || !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close = %d, %v; want 0, %v", name, n, err, os.ErrClosed)
		}
	}
}
