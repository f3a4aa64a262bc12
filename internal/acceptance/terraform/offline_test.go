package terraform

import (
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
)

// hangingHost accepts connections and never says a word.
func hangingHost(t *testing.T, dir string) (uri string, connections *atomic.Int64) {
	t.Helper()
	socket := filepath.Join(dir, "hang")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	connections = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	return "qemu+unix:///system?socket=" + socket, connections
}

func TestWhatNeedsNoHypervisorMakesNoConnection(t *testing.T) {
	instance, _ := newTiny(t, "offline", guest.TinyIdle)
	plantLease(t, instance.Name)
	w := newWorkspace(t)
	w.render(tinyInstance, instance)
	w.mustApply()

	away := instance
	var connections *atomic.Int64
	away.URI, connections = hangingHost(t, filepath.Dir(strings.TrimPrefix(instance.URI, "qemu+unix:///system?socket=")))
	w.render(tinyInstance, away)
	w.must("validate", "-no-color")
	if r := w.run("plan", "-refresh=false", "-detailed-exitcode", "-no-color"); r.code != 0 {
		t.Errorf("plan -refresh=false ended with code %d:\n%s", r.code, r.out)
	}

	// A new instance on a host that another resource is still to bring about.
	unknown := newWorkspace(t)
	unknown.render(strings.Replace(tinyInstance, `uri = {{ printf "%q" .URI }}`, `uri = terraform_data.host.output`, 1)+`
resource "terraform_data" "host" {
  input = {{ printf "%q" .URI }}
}
`, away)
	p, _ := unknown.plan()
	if got := p.actions("egressproxy_instance.ci"); got != "create" {
		t.Errorf("with an unknown host the plan does %s", got)
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}

	w.render(tinyInstance, instance)
	w.must("destroy", "-auto-approve", "-no-color")
	checkNothingLeft(t, instance.Name)
}
