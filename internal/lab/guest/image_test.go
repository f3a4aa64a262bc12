package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestImageComesFromTheCacheWithoutABuild(t *testing.T) {
	cache := t.TempDir()
	want := filepath.Join(cache, imageName())
	if err := os.WriteFile(want, []byte("image"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(want+".sha256", []byte("abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	path, sum, err := Image(t.Context(), cache, &log)
	if err != nil || path != want || sum != "abc" {
		t.Errorf("Image gave %q, %q, %v; want %q, \"abc\", no error", path, sum, err, want)
	}
	if log.Len() > 0 {
		t.Errorf("it built: %s", log.String())
	}
}

func TestImageWaitsForAnotherBuildNoLongerThanItsContext(t *testing.T) {
	cache := t.TempDir()
	unlock, err := lock(t.Context(), filepath.Join(cache, imageName()+".lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Image(ctx, cache, &strings.Builder{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
}

func TestFailedProgramOfABuildIsQuotedInTheError(t *testing.T) {
	var log strings.Builder
	err := run(t.Context(), t.TempDir(), newProgress(&log), "sh", "-c", "echo 'step: doing things'; echo no such mirror >&2; exit 4")
	if err == nil || !strings.Contains(err.Error(), "no such mirror") || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("error %v, want the exit status and what the program said", err)
	}
	if want := "building the guest image, step 1 of 6: doing things (0 s)\n"; log.String() != want {
		t.Errorf("progress %q, want %q", log.String(), want)
	}
}
