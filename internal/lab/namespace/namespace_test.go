package namespace_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/namespace"
)

// partVariable makes this test binary play the program that a test starts.
const partVariable = "NAMESPACE_TEST_PART"

func TestMain(m *testing.M) {
	part := os.Getenv(partVariable)
	if part == "" {
		os.Exit(m.Run())
	}
	os.Exit(namespace.Run(func() int { return play(part) }))
}

// play is the program inside the namespaces.
func play(part string) int {
	switch part {
	case "exit":
		return 7
	case "look":
		interfaces, _ := net.Interfaces()
		for _, i := range interfaces {
			fmt.Println("interface", i.Name, i.Flags&net.FlagUp != 0)
		}
		// A child's exit status must reach its parent although PID 1 reaps.
		var exit *exec.ExitError
		errors.As(exec.Command("sh", "-c", "exit 3").Run(), &exit)
		fmt.Println("child", exit.ExitCode())
		return 0
	case "orphan":
		// The shell ends; its child is an orphan in a session of its own.
		out, err := exec.Command("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & setsid sh -c 'exec readlink /proc/self/ns/pid'").Output()
		if err != nil {
			return 1
		}
		fmt.Print("ready ", string(out))
		if os.Getenv("NAMESPACE_TEST_STAY") == "" {
			return 0
		}
		select {}
	}
	return 1
}

func program(ctx context.Context, part string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(append(os.Environ(), partVariable+"="+part), env...)
	cmd.Stderr = os.Stderr
	return cmd
}

func TestRunReturnsTheExitCodeOfTheProgramInside(t *testing.T) {
	var exit *exec.ExitError
	if err := program(t.Context(), "exit").Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("ended with %v, want exit status 7", err)
	}
}

func TestRunGivesOnlyALoopbackThatIsUpAndLeavesChildrenToTheProgram(t *testing.T) {
	out, err := program(t.Context(), "look").Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := "interface lo true\nchild 3\n"; string(out) != want {
		t.Errorf("the program saw\n%s\nwant\n%s", out, want)
	}
}

func TestOrphansEndWithTheProgram(t *testing.T) {
	for _, end := range []struct {
		name   string
		env    []string
		signal syscall.Signal
	}{
		{name: "when it returns"},
		{name: "when it is asked to end", env: []string{"NAMESPACE_TEST_STAY=1"}, signal: syscall.SIGTERM},
		{name: "when it is killed", env: []string{"NAMESPACE_TEST_STAY=1"}, signal: syscall.SIGKILL},
	} {
		t.Run(end.name, func(t *testing.T) {
			cmd := program(t.Context(), "orphan", end.env...)
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				t.Fatalf("the program said nothing: %v", err)
			}
			ns := strings.TrimSpace(strings.TrimPrefix(line, "ready "))
			if end.signal != 0 {
				if len(processes(t, ns)) == 0 {
					t.Fatal("no process is in the namespace while the program runs")
				}
				if err := cmd.Process.Signal(end.signal); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait() // how it ends is another test's matter
			deadline := time.NewTimer(10 * time.Second)
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for left := processes(t, ns); len(left) > 0; left = processes(t, ns) {
				select {
				case <-tick.C:
				case <-deadline.C:
					t.Fatalf("processes %v still run in the namespace", left)
				}
			}
		})
	}
}

// processes lists those in a PID namespace, given as readlink shows it.
func processes(t *testing.T, namespace string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if ns, err := os.Readlink("/proc/" + e.Name() + "/ns/pid"); err == nil && ns == namespace {
			pids = append(pids, pid)
		}
	}
	return pids
}
