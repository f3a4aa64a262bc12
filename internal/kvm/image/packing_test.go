package image

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// pack compresses content as name says.
func pack(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch name {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "xz":
		w, err = xz.NewWriter(&out)
	case "zstd":
		var encoder *zstd.Encoder
		if encoder, err = zstd.NewWriter(nil); err == nil {
			return encoder.EncodeAll(content, nil) // with the content's size, as zstd's own tool has for files
		}
	default:
		t.Fatalf("nothing packs with %q", name)
	}
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestCompressedImageIsUnpackedWhileItIsRead(t *testing.T) {
	content := sample(3 << 20)
	blank, err := os.ReadFile("testdata/blank.qcow2.bz2")
	if err != nil {
		t.Fatal(err)
	}
	unpackedBlank := make([]byte, 104096)
	copy(unpackedBlank, "QFI\xfb\x00\x00\x00\x02")
	unpackedBlank[23], unpackedBlank[28] = 16, 0x40 // clusters of 64 KiB, a disk of 1 GiB
	for name, test := range map[string]struct{ file, content []byte }{
		"gzip":              {pack(t, "gzip", content), content},
		"gzip in two parts": {append(pack(t, "gzip", content[:1<<20]), pack(t, "gzip", content[1<<20:])...), content},
		"xz":                {pack(t, "xz", content), content},
		"zstd":              {pack(t, "zstd", content), content},
		"bzip2":             {blank, unpackedBlank},
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t, Source{Location: write(t, test.file), SHA256: sum(test.file)})
			if r.Header().Format != QCOW2 || r.Size() != int64(len(test.file)) {
				t.Errorf("it is %+v in a file of %d bytes", r.Header(), r.Size())
			}
			got, err := io.ReadAll(r.Packets(262120))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, test.content) {
				t.Errorf("%d bytes came of it, want the %d that were packed", len(got), len(test.content))
			}
			if r.SHA256() != sum(test.file) {
				t.Errorf("its checksum is %s, want that of the file", r.SHA256())
			}
		})
	}
}

func TestCompressedImageThatIsNotTheOneWantedIsRefused(t *testing.T) {
	for _, name := range []string{"gzip", "xz", "zstd"} {
		file := pack(t, name, sample(1<<20))
		for what, changed := range map[string][]byte{
			"another file":         file,
			"a damaged one":        flipped(file, len(file)/2),
			"one that is cut":      file[:len(file)/2],
			"one with an addition": append(bytes.Clone(file), "more"...),
		} {
			r, err := (Source{Location: write(t, changed), SHA256: sum([]byte("the one that is wanted"))}).Open(t.Context())
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				_ = r.Close()
			}
			wantFault(t, err, egress.ErrPermanent, "its sha256 is "+sum(changed))
			if !IsWrongChecksum(err) {
				t.Errorf("%s, %s: not told as a wrong checksum: %v", name, what, err)
			}
		}
	}
}

func TestCompressedImageThatItsPublisherBrokeIsRefused(t *testing.T) {
	for _, name := range []string{"gzip", "xz", "zstd"} {
		file := pack(t, name, sample(1<<20))
		for what, test := range map[string]struct {
			file []byte
			says string
		}{
			"cut short": {file[:len(file)/2], "it ends in the middle"},
			"damaged":   {flipped(file, len(file)/2), "unpacking it with " + name},
		} {
			r, err := (Source{Location: write(t, test.file), SHA256: sum(test.file)}).Open(t.Context())
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				_ = r.Close()
			}
			if err == nil || IsWrongChecksum(err) {
				t.Fatalf("%s, %s: got %v", name, what, err)
			}
			wantFault(t, err, egress.ErrPermanent, test.says)
		}
	}
}

func TestWhatIsInACompressedFileHasToBeADiskOfKnownSize(t *testing.T) {
	disk := make([]byte, 1<<20)
	copy(disk[510:], "\x55\xaa")
	for name, test := range map[string]struct {
		file []byte
		says string
	}{
		"an archive":              {pack(t, "gzip", at(257, "ustar")), "a tar archive"},
		"a compressed disk":       {pack(t, "xz", pack(t, "gzip", sample(1<<20))), "compressed with gzip"},
		"a web page":              {pack(t, "zstd", []byte("<html>not found</html>")), "a web page"},
		"a disk of unknown size":  {pack(t, "gzip", disk), "a raw disk of unknown size"},
		"nothing":                 {pack(t, "gzip", nil), "image is empty"},
		"a disk with a base file": {pack(t, "zstd", qcow2(3, func(h []byte) { h[15] = 80; h[19] = 20 })), "backing file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := (Source{Location: write(t, test.file), SHA256: sum(test.file)}).Open(t.Context())
			wantFault(t, err, egress.ErrPermanent, test.says, "in a file compressed with")
		})
	}
	// zstd tells the size in its header.
	file := pack(t, "zstd", disk)
	r := open(t, Source{Location: write(t, file), SHA256: sum(file)})
	got, err := io.ReadAll(r)
	if r.Header() != (Header{Format: Raw, VirtualSize: 1 << 20}) || err != nil || !bytes.Equal(got, disk) {
		t.Errorf("a raw disk is read as %+v, %d bytes, %v", r.Header(), len(got), err)
	}
}

func TestFileThatUnpacksToMoreThanItsDiskIsRefused(t *testing.T) {
	head := qcow2(2, func(h []byte) { binary.BigEndian.PutUint64(h[24:], 1<<20) })
	bomb := pack(t, "gzip", append(head, make([]byte, 100<<20)...))
	r := open(t, Source{Location: write(t, bomb), SHA256: sum(bomb)})
	n, err := io.Copy(io.Discard, r)
	wantFault(t, err, egress.ErrPermanent, "longer than a disk of 1048576 bytes")
	if n > 70<<20 {
		t.Errorf("%d bytes were handed out first", n)
	}
	// A second frame is not in the size that the first one tells.
	disk := make([]byte, 1<<20)
	copy(disk[510:], "\x55\xaa")
	file := append(pack(t, "zstd", disk), pack(t, "zstd", disk)...)
	_, err = io.Copy(io.Discard, open(t, Source{Location: write(t, file), SHA256: sum(file)}))
	wantFault(t, err, egress.ErrPermanent, "longer than a disk of 1048576 bytes")
}

func flipped(b []byte, at int) []byte {
	out := bytes.Clone(b)
	out[at] ^= 0xff
	return out
}
