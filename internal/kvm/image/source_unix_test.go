//go:build unix

package image

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Opening a pipe would block for as long as nobody writes to it.
func TestPipeIsRefusedWithoutOpeningIt(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Source{Location: fifo, SHA256: sum(nil)}.Open(t.Context())
	wantFault(t, err, egress.ErrPermanent, fifo, "not a regular file")
}
