package image

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// qcow2 writes the header of a 10 GiB disk as qemu-img does, padded to a
// cluster; change alters it.
func qcow2(version uint32, change func(header []byte)) []byte {
	h := make([]byte, 64<<10)
	copy(h, "QFI\xfb")
	binary.BigEndian.PutUint32(h[4:], version)
	binary.BigEndian.PutUint32(h[20:], 16)
	binary.BigEndian.PutUint64(h[24:], 10<<30)
	binary.BigEndian.PutUint32(h[36:], 20)
	binary.BigEndian.PutUint64(h[40:], 0x30000)
	binary.BigEndian.PutUint64(h[48:], 0x10000)
	binary.BigEndian.PutUint32(h[56:], 1)
	if version >= 3 {
		binary.BigEndian.PutUint32(h[96:], 4)
		binary.BigEndian.PutUint32(h[100:], 112)
	}
	if change != nil {
		change(h)
	}
	return h
}

// at gives a file of HeaderLength bytes with text at an offset.
func at(offset int, text string) []byte {
	b := make([]byte, HeaderLength)
	copy(b[offset:], text)
	return b
}

func TestParseHeaderReadsFormatAndVirtualSize(t *testing.T) {
	mbr := at(510, "\x55\xaa")
	tests := map[string]struct {
		first    []byte
		fileSize int64
		want     Header
	}{
		"qcow2 version 3":                    {qcow2(3, nil), 196616, Header{Format: QCOW2, VirtualSize: 10 << 30}},
		"qcow2 version 2":                    {qcow2(2, nil), 196616, Header{Format: QCOW2, VirtualSize: 10 << 30}},
		"qcow2 version 2, header only":       {qcow2(2, nil)[:72], 72, Header{Format: QCOW2, VirtualSize: 10 << 30}},
		"qcow2 of unknown file size":         {qcow2(3, nil), -1, Header{Format: QCOW2, VirtualSize: 10 << 30}},
		"qcow2 compressed with zstd":         {qcow2(3, func(h []byte) { h[79] = 1 << 3; h[104] = 1 }), 1 << 20, Header{Format: QCOW2, VirtualSize: 10 << 30}},
		"qcow2 not closed properly":          {qcow2(3, func(h []byte) { h[79] = 1 }), 1 << 20, Header{Format: QCOW2, VirtualSize: 10 << 30}},
		"raw with MBR":                       {mbr, 2 << 30, Header{Format: Raw, VirtualSize: 2 << 30}},
		"raw with GPT":                       {at(512, "EFI PART"), 3 << 30, Header{Format: Raw, VirtualSize: 3 << 30}},
		"raw that ends within a sector":      {mbr, 2<<30 + 1, Header{Format: Raw, VirtualSize: 2<<30 + 512}},
		"raw shorter than what is looked at": {mbr[:4096], 4096, Header{Format: Raw, VirtualSize: 4096}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseHeader(test.first, test.fileSize)
			if err != nil || got != test.want {
				t.Errorf("ParseHeader = %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestParseHeaderRefusesByName(t *testing.T) {
	iso := at(isoDescriptor+1, "CD001")
	copy(iso[510:], "\x55\xaa")
	put32 := func(offset int, value uint32) []byte {
		return qcow2(3, func(h []byte) { binary.BigEndian.PutUint32(h[offset:], value) })
	}
	put64 := func(offset int, value uint64) []byte {
		return qcow2(3, func(h []byte) { binary.BigEndian.PutUint64(h[offset:], value) })
	}
	tests := map[string]struct {
		first []byte
		want  []string
	}{
		"nothing":                   {nil, []string{"empty"}},
		"VMDK":                      {at(0, "KDMV\x01"), []string{"VMDK", "qemu-img convert -O qcow2"}},
		"VMDK of ESX":               {at(0, "COWD"), []string{"VMDK"}},
		"VMDK descriptor":           {[]byte("# Disk DescriptorFile\nversion=1\n"), []string{"VMDK", "descriptor"}},
		"VDI":                       {at(64, "\x7f\x10\xda\xbe"), []string{"VDI", "qemu-img convert"}},
		"VHDX":                      {at(0, "vhdxfile"), []string{"VHDX", "qemu-img convert"}},
		"VHD":                       {at(0, "conectix"), []string{"VHD", "qemu-img convert"}},
		"QED":                       {at(0, "QED\x00"), []string{"QED"}},
		"Parallels":                 {at(0, "WithouFreSpacExt"), []string{"Parallels"}},
		"LUKS":                      {at(0, "LUKS\xba\xbe"), []string{"LUKS"}},
		"ISO with a boot sector":    {iso, []string{"ISO 9660", "cloud image"}},
		"gzip":                      {at(0, "\x1f\x8b\x08"), []string{"gzip", "decompress it first"}},
		"xz":                        {at(0, "\xfd7zXZ\x00"), []string{"xz", "decompress it first"}},
		"zstd":                      {at(0, "\x28\xb5\x2f\xfd"), []string{"zstd", "decompress it first"}},
		"bzip2":                     {at(0, "BZh9"), []string{"bzip2", "decompress it first"}},
		"zip":                       {at(0, "PK\x03\x04"), []string{"zip"}},
		"tar":                       {at(257, "ustar"), []string{"tar archive", "OVA"}},
		"HTML":                      {[]byte("\n<!DOCTYPE html><html>Log in"), []string{"web page", "address of the file"}},
		"XML":                       {[]byte("<?xml version='1.0'?><Error>"), []string{"xml"}},
		"zeros":                     {make([]byte, HeaderLength), []string{"neither qcow2 nor a raw disk", "00 00 00"}},
		"text":                      {[]byte("not found"), []string{"neither qcow2 nor a raw disk"}},
		"qcow version 1":            {qcow2(1, nil), []string{"version 1", "qemu-img convert"}},
		"qcow2 of the future":       {qcow2(4, nil), []string{"version 4"}},
		"qcow2 cut short":           {qcow2(3, nil)[:40], []string{"cut short"}},
		"qcow2 version 3 cut short": {qcow2(3, nil)[:80], []string{"cut short"}},
		"qcow2 AES":                 {put32(32, 1), []string{"encrypted"}},
		"qcow2 LUKS":                {put32(32, 2), []string{"encrypted"}},
		"qcow2 external data file":  {put64(72, 1<<2), []string{"data is in another file"}},
		"qcow2 corrupt":             {put64(72, 1<<1), []string{"corrupt", "qemu-img check"}},
		"qcow2 unknown feature":     {put64(72, 1<<40), []string{"unknown features"}},
		"qcow2 without a size":      {put64(24, 0), []string{"damaged", "virtual size of 0"}},
		"qcow2 of absurd size":      {put64(24, 1<<63), []string{"damaged"}},
		"qcow2 of absurd clusters":  {put32(20, 63), []string{"damaged", "2^63"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ParseHeader(test.first, int64(len(test.first)))
			wantText(t, err, test.want...)
		})
	}
}

func TestParseHeaderRefusesARawDiskOfUnknownSize(t *testing.T) {
	_, err := ParseHeader(at(510, "\x55\xaa"), -1)
	wantText(t, err, "unknown size", "content-length")
}

func TestParseHeaderRefusesABackingFileAndNamesIt(t *testing.T) {
	name := "https://u:hunter2@host/base.qcow2?token=s3cret\x1b[2J"
	first := qcow2(2, func(h []byte) {
		binary.BigEndian.PutUint64(h[8:], 0x200)
		binary.BigEndian.PutUint32(h[16:], uint32(len(name)))
		copy(h[0x200:], name)
	})
	got, err := ParseHeader(first, int64(len(first)))
	wantText(t, err, "backing file", `"https://host/base.qcow2?..."`)
	if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("the error repeats secrets or control characters: %q", err)
	}
	if got.BackingFile != name {
		t.Errorf("BackingFile = %q, want %q", got.BackingFile, name)
	}
}

func TestParseHeaderRefusesABackingFileOutOfReach(t *testing.T) {
	for _, offset := range []uint64{HeaderLength, 1 << 63, 1<<64 - 1} {
		first := qcow2(3, func(h []byte) {
			binary.BigEndian.PutUint64(h[8:], offset)
			binary.BigEndian.PutUint32(h[16:], 9)
		})
		_, err := ParseHeader(first[:HeaderLength], 1<<20)
		wantText(t, err, "backing file")
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add(qcow2(2, nil)[:72], int64(1<<20))
	f.Add(qcow2(3, nil)[:112], int64(-1))
	f.Add(qcow2(3, func(h []byte) { h[15] = 80; h[19] = 20 })[:112], int64(1<<20))
	f.Add(at(510, "\x55\xaa")[:512], int64(1<<30))
	f.Add(at(512, "EFI PART")[:1024], int64(1<<62))
	f.Add([]byte("<html>"), int64(6))
	f.Fuzz(func(t *testing.T, first []byte, size int64) {
		h, err := ParseHeader(first, size)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "image is ") {
				t.Errorf("the error does not say what the image is: %q", err)
			}
			return
		}
		switch {
		case h.BackingFile != "":
			t.Errorf("accepted an image with the backing file %q", h.BackingFile)
		case h.Format == QCOW2 && (!bytes.HasPrefix(first, []byte("QFI\xfb")) || h.VirtualSize == 0 || h.VirtualSize > 1<<56):
			t.Errorf("accepted as qcow2 of %d bytes", h.VirtualSize)
		case h.Format == Raw && (size < 0 || h.VirtualSize < uint64(size) || h.VirtualSize-uint64(size) >= 512):
			t.Errorf("a raw disk of %d bytes has %d", size, h.VirtualSize)
		case h.Format != QCOW2 && h.Format != Raw:
			t.Errorf("accepted as %q", h.Format)
		}
	})
}

func wantText(t *testing.T, err error, wants ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", wants)
	}
	for _, want := range wants {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}
