package faults

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os/exec"
	"testing"
)

// command runs a program that has to succeed.
func command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

func sha256Of(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func writeAll(t testing.TB, w io.WriteCloser, content []byte) {
	t.Helper()
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
