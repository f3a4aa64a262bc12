package packages

import (
	"errors"
	"strings"
	"testing"
)

func TestRequireNamesTheCommandThatInstallsWhatIsMissing(t *testing.T) {
	err := Require([]Tool{
		{"sh", "dash"},
		{"no-such-program-b", "b-package"},
		{"/no/such/file", "a-package"},
		{"no-such-program-c", "b-package"},
	})
	if !errors.Is(err, ErrMissing) {
		t.Fatalf("error %v, want one of the kind ErrMissing", err)
	}
	if want := "apt-get install --yes --no-install-recommends a-package b-package"; !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %q does not end with the command %q", err, want)
	}
}

func TestRequireIsContentWithProgramsOutsideThePath(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	if err := Require([]Tool{{"losetup", "mount"}, {"/bin/sh", "dash"}}); err != nil {
		t.Error(err)
	}
}
