package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"testing"
)

func TestPacketsOfATLSBodyAreFull(t *testing.T) {
	const size = 262_120
	content := sample(5*size + 1000)
	s := serve(t, secure, func(_ int, w http.ResponseWriter, r *http.Request) { part(content, `"1"`)(w, r) })
	r := open(t, s.source("/a", content))
	in, buffer := r.Packets(size), make([]byte, 4<<20)
	var got []byte
	for _, want := range []int{size, size, size, size, size, 1000} {
		n, err := in.Read(buffer)
		if n != want || err != nil {
			t.Fatalf("Read = %d, %v; want %d", n, err, want)
		}
		got = append(got, buffer[:n]...)
	}
	if n, err := in.Read(buffer); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("Read at the end = %d, %v; want 0, EOF", n, err)
	}
	if !bytes.Equal(got, content) || r.SHA256() != sum(content) {
		t.Errorf("the packets do not make up the image")
	}
}

func TestPacketsFitSmallerBuffers(t *testing.T) {
	content := sample(100_000)
	r := open(t, Source{Location: write(t, content), SHA256: sum(content)})
	in, buffer := r.Packets(10_000), make([]byte, 3_000)
	var got []byte
	for {
		n, err := in.Read(buffer)
		got = append(got, buffer[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n != len(buffer) && len(got) != len(content) {
			t.Errorf("Read = %d, want %d", n, len(buffer))
		}
	}
	if !bytes.Equal(got, content) {
		t.Errorf("read %d bytes that differ from the image", len(got))
	}
}

// A generated body stands for an image much larger than what may be held.
func TestMemoryDoesNotGrowWithTheImage(t *testing.T) {
	const length, size = 64 << 20, 262_120
	body := &generated{left: length}
	hash := sha256.New()
	if _, err := io.Copy(hash, &generated{left: length}); err != nil {
		t.Fatal(err)
	}
	s := Source{Location: "https://host/a", SHA256: hex.EncodeToString(hash.Sum(nil)), Client: &http.Client{
		Transport: roundTripper(func(*http.Request) (*http.Response, error) { return reply(200, body, length), nil })}}
	r := open(t, s)
	buffers := map[*byte]bool{}
	p, ok := r.Packets(size).(*packets)
	if !ok {
		t.Fatal("Packets gives another type")
	}
	total, packet := 0, make([]byte, 4<<20)
	for {
		n, err := p.Read(packet)
		total += n
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		buffers[&p.buffer[0]] = true
	}
	if total != length {
		t.Errorf("read %d bytes, want %d", total, length)
	}
	if len(buffers) > packetsAhead {
		t.Errorf("%d packets were held, want at most %d", len(buffers), packetsAhead)
	}
	if body.largest > size {
		t.Errorf("asked the body for %d bytes at once, want at most %d", body.largest, size)
	}
}

// generated is a raw disk with an MBR, made while it is read.
type generated struct {
	offset, left, largest int
}

func (g *generated) Read(p []byte) (int, error) {
	g.largest = max(g.largest, len(p))
	if g.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), g.left)
	clear(p[:n])
	for i, mark := range map[int]byte{510: 0x55, 511: 0xaa} {
		if i >= g.offset && i < g.offset+n {
			p[i-g.offset] = mark
		}
	}
	g.offset, g.left = g.offset+n, g.left-n
	return n, nil
}

func BenchmarkPackets(b *testing.B) {
	const length, size = 64 << 20, 262_120
	hash := sha256.New()
	if _, err := io.Copy(hash, &generated{left: length}); err != nil {
		b.Fatal(err)
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	b.SetBytes(length)
	for b.Loop() {
		r, err := Source{Location: "https://host/a", SHA256: sum, Client: &http.Client{
			Transport: roundTripper(func(*http.Request) (*http.Response, error) {
				return reply(200, &generated{left: length}, length), nil
			})}}.Open(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r.Packets(size)}, make([]byte, size)); err != nil {
			b.Fatal(err)
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
