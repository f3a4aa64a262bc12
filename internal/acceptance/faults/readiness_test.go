package faults

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
)

func TestProxyThatCannotBeReadyFailsTheCreateAndKeepsTheMachine(t *testing.T) {
	for name, test := range map[string]struct {
		// answer is the proxy's to every CONNECT, with or without a password.
		answer string
		says   []string
	}{
		"open":             {"HTTP/1.1 200 OK\r\n\r\n", []string{"open to everyone"}},
		"another-password": {"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", []string{"does not accept the client's credentials", "password_wo_version"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			want := spec(t, "unready-"+name, guest.TinyIdle, false)
			fakeProxy(t, plantLease(t, want.ID.Name), test.answer)
			want.Proxy = &egress.Proxy{
				HTTPPort: 3128,
				Clients:  map[string]egress.Client{"ci": {Password: egress.NewSecret("s3cret-pass"), PasswordVersion: 1}},
				Policy:   egress.Policy{Default: egress.Deny, AllowDomains: []string{"www.allowed.test"}, AllowPorts: []int{443}},
			}
			want.HealthCheck = egress.HealthCheck{Target: "www.allowed.test:443", From: egress.FromClient, Interval: 200 * time.Millisecond}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			made, err := w.backend.Create(ctx, want)
			var fault *egress.Fault
			if !errors.As(err, &fault) || !errors.Is(err, egress.ErrPermanent) {
				t.Fatalf("got %v, want a permanent failure", err)
			}
			for _, part := range test.says {
				if text := fault.Error() + " " + fault.Remedy; !strings.Contains(text, part) {
					t.Errorf("%q does not say %q", text, part)
				}
			}
			if strings.Contains(err.Error(), "s3cret-pass") {
				t.Errorf("the error holds the password: %v", err)
			}
			if made.ID != want.ID || !made.Unfinished {
				t.Errorf("what was made came back as %+v", made)
			}
			checkRuns(t, want.ID.Name)
			mustDelete(t, w.backend, want.ID)
			checkNothingLeft(t, want)
		})
	}
}

// fakeProxy answers every request at addr, port 3128, alike.
func fakeProxy(t testing.TB, addr netip.Addr, answer string) {
	t.Helper()
	if out, err := exec.Command("ip", "address", "add", addr.String()+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(addr, 3128).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = conn.Write([]byte(answer))
				}
			}()
		}
	}()
}
