package guest

import (
	"bufio"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// boot starts a tiny image on QEMU and waits for its line on the serial port.
// The returned channel yields once the machine has ended.
func boot(t *testing.T, kind Kind) (ended <-chan error) {
	t.Helper()
	image, err := Tiny(kind, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-m", "64",
		"-nodefaults", "-display", "none", "-serial", "stdio",
		"-drive", "if=none,id=d,format=raw,file="+image, "-device", "virtio-blk-pci,drive=d")
	serial, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(serial)
	for {
		if !lines.Scan() {
			t.Fatalf("the machine ended without printing %q: %v", kind.Line(), cmd.Wait())
		}
		if strings.Contains(lines.Text(), kind.Line()) {
			break
		}
	}
	done := make(chan error, 1)
	go func() {
		for lines.Scan() { // until the pipe closes
		}
		done <- cmd.Wait()
	}()
	return done
}

func TestTinyPowersOffEndsTheMachineByItself(t *testing.T) {
	select {
	case err := <-boot(t, TinyPowersOff):
		if err != nil {
			t.Errorf("QEMU ended with %v, want a clean power-off", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the machine still runs 30 seconds after it said that it powers off")
	}
}

func TestTinyImagesThatStayDoNotEnd(t *testing.T) {
	for _, kind := range []Kind{TinyIdle, TinyPanics} {
		t.Run(string(kind), func(t *testing.T) {
			select {
			case err := <-boot(t, kind):
				t.Errorf("the machine ended by itself: %v", err)
			case <-time.After(3 * time.Second): // longer than TinyPowersOff takes
			}
		})
	}
}

func TestTinyRefusesAnUnknownKind(t *testing.T) {
	if _, err := Tiny("dances", t.TempDir()); err == nil {
		t.Error("no error")
	}
}
