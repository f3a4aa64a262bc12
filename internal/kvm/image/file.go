package image

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

// verifiedFile is an image's file as it is at its place. It ends in io.EOF only
// when the checksum of all that was read is the one that is wanted.
type verifiedFile struct {
	doing string
	size  int64 // in bytes, -1 when unknown
	want  string

	stream io.ReadCloser
	offset int64
	hash   hash.Hash
	sum    string
	// ended tells that err is not about the way but about the file's end: its
	// checksum's verdict.
	ended bool
	err   error // what every further Read returns
}

// Read reads the next bytes of the file. Of a wrong one whose size is known it
// withholds the last.
func (f *verifiedFile) Read(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.stream.Read(p)
	f.hash.Write(p[:n]) // never fails, by hash.Hash's contract
	f.offset += int64(n)
	switch {
	case err == nil && f.offset != f.size:
		return n, nil
	case err == nil || errors.Is(err, io.EOF):
		f.ended, f.err = true, f.verify()
	default:
		f.err = err
	}
	if n > 0 && errors.Is(f.err, io.EOF) {
		return n, nil
	}
	return 0, f.err
}

// verify compares the checksum of all that was read; io.EOF is its yes.
func (f *verifiedFile) verify() error {
	f.sum = hex.EncodeToString(f.hash.Sum(nil))
	if f.sum == f.want {
		return io.EOF
	}
	return permanent(f.doing, &checksumError{got: f.sum, want: f.want, length: f.offset},
		"Compare both with the checksum that the image's publisher names. If the file was replaced by a newer one, update sha256; "+
			"if the publisher's is the configured one, do not use the file.")
}

// checksumError says that a file is not the one that was wanted.
type checksumError struct {
	got, want string
	length    int64
}

func (e *checksumError) Error() string {
	return fmt.Sprintf("its sha256 is %s, and the configuration wants %s (%d bytes read)", e.got, e.want, e.length)
}

// IsWrongChecksum tells whether an image was refused for the checksum of its
// file.
func IsWrongChecksum(err error) bool {
	var wrong *checksumError
	return errors.As(err, &wrong)
}
