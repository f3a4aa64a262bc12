package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Format is a disk image's format, in libvirt's words.
type Format string

// The formats a base image can have.
const (
	QCOW2 Format = "qcow2"
	Raw   Format = "raw"
)

// HeaderLength is how many of a file's first bytes ParseHeader needs to tell
// every format: the last mark it looks for is ISO 9660's, in sector 16.
const HeaderLength = isoDescriptor + 2048

// isoDescriptor is the offset of an ISO 9660 image's first volume descriptor
// (ECMA-119, 6.2.1 and 8.4).
const isoDescriptor = 16 * 2048

// Header is what an image's first bytes say about it.
type Header struct {
	Format Format
	// VirtualSize is the disk's size in bytes as a guest sees it.
	VirtualSize uint64
	// BackingFile is the file the image is only a difference to. Machines
	// cannot start from such an image, so it is set beside an error only.
	BackingFile string
}

// ParseHeader tells what kind of image a file is from its first bytes, of
// which it wants HeaderLength or, of a shorter file, all. fileSize is the
// file's whole length in bytes, negative when it is not known.
//
// It accepts qcow2 of versions 2 and 3 that stand alone, and raw disks with a
// partition table or boot sector. Everything else is an error that names what
// the file is, where that can be told, and what to do with it. In particular
// it refuses what refers to another file: QEMU would open that file on the
// host, with the hypervisor's rights.
func ParseHeader(first []byte, fileSize int64) (Header, error) {
	if len(first) == 0 {
		return Header{}, errors.New("image is empty")
	}
	if bytes.HasPrefix(first, []byte("QFI\xfb")) {
		return parseQCOW(first)
	}
	for _, known := range foreign {
		if len(first) > known.offset && bytes.HasPrefix(first[known.offset:], []byte(known.magic)) {
			return Header{}, fmt.Errorf("image is %s; %s", known.what, known.remedy)
		}
	}
	if markup(first) {
		return Header{}, errors.New("image is a web page or an xml document, not a disk; use the address of the file itself")
	}
	if !partitioned(first) {
		return Header{}, fmt.Errorf("image is neither qcow2 nor a raw disk with a partition table (its first bytes are % x); "+
			"convert it with qemu-img convert -O qcow2", first[:min(len(first), 8)])
	}
	if fileSize < 0 {
		return Header{}, errors.New("image is a raw disk of unknown size: the server sends no content-length, or the file is compressed; " +
			"convert it with qemu-img convert -O qcow2 -c")
	}
	// QEMU rounds a raw disk up to whole sectors.
	return Header{Format: Raw, VirtualSize: (uint64(fileSize) + sector - 1) / sector * sector}, nil
}

// What is wrong with files that are something else.
const (
	convert    = "convert it with qemu-img convert -O qcow2"
	decompress = "decompress it first"
	unpack     = "unpack the disk image in it first"
	sector     = 512
)

// foreign are the files people mistake for a disk image that libvirt can use,
// by the magic numbers of their own specifications.
var foreign = []struct {
	offset       int
	magic        string
	what, remedy string
}{
	{0, "KDMV", "a VMDK disk", convert},
	{0, "COWD", "a VMDK disk", convert},
	{0, "# Disk DescriptorFile", "a VMDK disk's descriptor", "give the disk itself and " + convert},
	{64, "\x7f\x10\xda\xbe", "a VDI disk", convert},
	{0, "vhdxfile", "a VHDX disk", convert},
	{0, "conectix", "a VHD disk", convert},
	{0, "QED\x00", "a QED disk", convert},
	{0, "WithoutFreeSpace", "a Parallels disk", convert},
	{0, "WithouFreSpacExt", "a Parallels disk", convert},
	{0, "LUKS\xba\xbe", "a disk encrypted with LUKS", "decrypt it first"},
	// Before the partition table: hybrid ISO images have one too.
	{isoDescriptor + 1, "CD001", "an ISO 9660 image (an installer or live CD)", "use an installed disk image, a distribution's cloud image for example"},
	{0, "\x1f\x8b\x08", "compressed with gzip", decompress},
	{0, "\xfd7zXZ\x00", "compressed with xz", decompress},
	{0, "\x28\xb5\x2f\xfd", "compressed with zstd", decompress},
	{0, "BZh", "compressed with bzip2", decompress},
	{0, "\x04\x22\x4d\x18", "compressed with lz4", decompress},
	{0, "PK\x03\x04", "a zip archive", unpack},
	{0, "7z\xbc\xaf\x27\x1c", "a 7z archive", unpack},
	{257, "ustar", "a tar archive (an OVA is one too)", unpack},
}

// The incompatible features of a qcow2 header that matter here.
const (
	qcowCorrupt          = 1 << 1
	qcowExternalDataFile = 1 << 2
	qcowKnownFeatures    = 1<<5 - 1
)

// parseQCOW reads the header that QEMU's docs/interop/qcow2.txt describes
// (qcow2.rst in newer trees); all numbers are big-endian.
func parseQCOW(first []byte) (Header, error) {
	const lengthV2, lengthV3 = 72, 104
	if len(first) < lengthV2 {
		return Header{}, errors.New("image is a qcow2 disk that ends within its header; it was cut short")
	}
	version := binary.BigEndian.Uint32(first[4:])
	switch version {
	case 2, 3:
	case 1:
		return Header{}, errors.New("image is a qcow disk of version 1; " + convert)
	default:
		return Header{}, fmt.Errorf("image is a qcow2 disk of version %d, which is unknown; %s", version, convert)
	}
	header := Header{Format: QCOW2, VirtualSize: binary.BigEndian.Uint64(first[24:])}

	if offset := binary.BigEndian.Uint64(first[8:]); offset != 0 {
		header.BackingFile = backingFile(first, offset, binary.BigEndian.Uint32(first[16:]))
		return header, fmt.Errorf("image is only a difference to a backing file %s; make it whole with qemu-img convert -O qcow2",
			printable(header.BackingFile))
	}
	if method := binary.BigEndian.Uint32(first[32:]); method != 0 {
		return header, errors.New("image is an encrypted qcow2 disk; decrypt it with qemu-img convert first")
	}
	if bits := binary.BigEndian.Uint32(first[20:]); bits < 9 || bits > 21 {
		return header, fmt.Errorf("image is a qcow2 disk with a damaged header: clusters of 2^%d bytes", bits)
	}
	// 64 PB is the most that qcow2's tables can address.
	if header.VirtualSize == 0 || header.VirtualSize > 1<<56 {
		return header, fmt.Errorf("image is a qcow2 disk with a damaged header: a virtual size of %d bytes", header.VirtualSize)
	}
	if version == 2 {
		return header, nil
	}

	if len(first) < lengthV3 {
		return header, errors.New("image is a qcow2 disk that ends within its header; it was cut short")
	}
	features := binary.BigEndian.Uint64(first[72:])
	switch {
	case features&qcowExternalDataFile != 0:
		return header, errors.New("image is a qcow2 disk whose data is in another file; make it whole with qemu-img convert -O qcow2")
	case features&qcowCorrupt != 0:
		return header, errors.New("image is a qcow2 disk marked as corrupt; repair it with qemu-img check -r all")
	case features&^qcowKnownFeatures != 0:
		return header, fmt.Errorf("image is a qcow2 disk that uses unknown features (%#x); %s", features&^qcowKnownFeatures, convert)
	}
	return header, nil
}

// backingFile is the name at offset, or "?" where it is out of reach.
func backingFile(first []byte, offset uint64, length uint32) string {
	const longest = 1023
	if length == 0 || length > longest || offset >= uint64(len(first)) || uint64(length) > uint64(len(first))-offset {
		return "?"
	}
	return string(first[offset : offset+uint64(length)])
}

// printable quotes a name that a stranger's file gave.
func printable(name string) string { return fmt.Sprintf("%+q", redact(name)) }

// partitioned tells whether these are the first bytes of a disk: an MBR or
// other boot sector ends in 55 AA (UEFI specification, 5.2.1), a GPT header
// stands in the second sector and begins with "EFI PART" (5.3.2).
func partitioned(first []byte) bool {
	if len(first) < sector {
		return false
	}
	return bytes.Equal(first[510:512], []byte{0x55, 0xaa}) || bytes.HasPrefix(first[sector:], []byte("EFI PART"))
}

// markup tells whether the bytes are HTML or XML: what servers answer instead
// of the file when they want a login or have an error to tell.
func markup(first []byte) bool {
	start := bytes.TrimLeft(bytes.TrimPrefix(first, []byte("\xef\xbb\xbf")), " \t\r\n")
	start = bytes.ToLower(start[:min(len(start), 16)])
	for _, tag := range []string{"<!doctype", "<html", "<head", "<?xml", "<!--"} {
		if bytes.HasPrefix(start, []byte(tag)) {
			return true
		}
	}
	return false
}
