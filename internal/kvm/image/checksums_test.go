package image

import (
	"net/http"
	"strings"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

var (
	sumA = strings.Repeat("a1", 32)
	sumB = strings.Repeat("b2", 32)
)

func TestChecksumIsFoundInEveryFormOfAList(t *testing.T) {
	for name, list := range map[string]string{
		"text":          sumB + "  other.qcow2\n" + sumA + "  disk.qcow2\n",
		"binary":        sumB + " *other.qcow2\n" + sumA + " *disk.qcow2\n",
		"with tags":     "SHA256 (other.qcow2) = " + sumB + "\nSHA256 (disk.qcow2) = " + sumA + "\n",
		"directories":   sumB + "  ./x/other.qcow2\n" + sumA + "  ./x/disk.qcow2\n",
		"upper case":    strings.ToUpper(sumA) + "  disk.qcow2\n",
		"lone":          sumA + "\n",
		"Windows lines": sumB + "  other.qcow2\r\n" + sumA + "  disk.qcow2\r\n",
		"signed":        "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# disk.qcow2: 1 bytes\nSHA256 (disk.qcow2) = " + sumA + "\n-----BEGIN PGP SIGNATURE-----\niQIzBAEBCAAd\n-----END PGP SIGNATURE-----\n",
		"twice":         sumA + "  disk.qcow2\n" + sumA + "  mirror/disk.qcow2\n",
		"other kinds":   strings.Repeat("c3", 64) + "  disk.qcow2\nMD5 (disk.qcow2) = 0123\n" + sumA + "  disk.qcow2",
	} {
		if got, err := findChecksum(list, "disk.qcow2"); err != nil || got != sumA {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestListThatDoesNotTellTheChecksumIsRefused(t *testing.T) {
	for name, test := range map[string]struct{ list, says string }{
		"nothing":     {"", "no SHA-256 checksum"},
		"a web page":  {"<html><body>404</body></html>", "no SHA-256 checksum"},
		"others only": {sumB + "  other.qcow2\n", `only for ["other.qcow2"]`},
		"longer sums": {strings.Repeat("c3", 64) + "  disk.qcow2\n", "no SHA-256 checksum"},
		"two answers": {sumA + "  disk.qcow2\n" + sumB + "  old/disk.qcow2\n", "2 different"},
		"two lone":    {sumA + "\n" + sumB + "\n", "2 different"},
		"a longer name": {
			sumB + "  disk.qcow2.sig\n", "no SHA-256 checksum for disk.qcow2",
		},
		"many others": {strings.Repeat(sumB+"  other.qcow2\n", 9), "and 4 more"},
	} {
		if got, err := findChecksum(test.list, "disk.qcow2"); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %q, %v; want an error that says %q", name, got, err, test.says)
		}
	}
}

func TestChecksumComesFromTheListBesideTheImage(t *testing.T) {
	s := serve(t, secure, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable) // once is survived
			return
		}
		_, _ = w.Write([]byte(sumA + "  disk image.qcow2\n" + sumB + "  other.qcow2\n"))
	})
	source := s.source("/disk%20image.qcow2", nil)
	got, err := source.FetchChecksum(t.Context(), s.URL+"/SHA256SUMS?token=hunter2")
	if err != nil || got != sumA {
		t.Errorf("got %q, %v", got, err)
	}
	_, err = s.source("/third.qcow2", nil).FetchChecksum(t.Context(), s.URL+"/SHA256SUMS?token=hunter2")
	wantFault(t, err, egress.ErrPermanent, "no SHA-256 checksum for third.qcow2", "/SHA256SUMS?...")
	wantNoSecret(t, err)
}

func TestEndlessListOfChecksumsIsRefused(t *testing.T) {
	s := serve(t, plain, func(_ int, w http.ResponseWriter, _ *http.Request) {
		for range 2 << 10 {
			if _, err := w.Write([]byte(strings.Repeat("x", 1<<10))); err != nil {
				return
			}
		}
	})
	_, err := s.source("/disk.qcow2", nil).FetchChecksum(t.Context(), s.URL+"/SHA256SUMS")
	wantFault(t, err, egress.ErrPermanent, "longer than 1048576 bytes")
}

func FuzzFindChecksum(f *testing.F) {
	f.Add(sumA+"  disk.qcow2\n", "disk.qcow2")
	f.Add("SHA256 (disk.qcow2) = "+sumA, "disk.qcow2")
	f.Add(sumA, "")
	f.Fuzz(func(t *testing.T, list, name string) {
		sum, err := findChecksum(list, name)
		if err != nil {
			return
		}
		if len(sum) != 64 || !strings.Contains(strings.ToLower(list), sum) {
			t.Errorf("%q has come of %q", sum, list)
		}
	})
}
