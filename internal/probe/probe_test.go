package probe

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// proxy answers each connection's CONNECT by what a test makes of it.
type proxy struct {
	// anonymous, target and metadata handle a request without credentials,
	// one with them, and one for the metadata address.
	anonymous, target, metadata func(conn net.Conn, host string)
}

const password = "p:%41 ü\\"

func say(text string) func(net.Conn, string) {
	return func(conn net.Conn, _ string) { _, _ = io.WriteString(conn, text) }
}

// hang holds the connection until the other side gives up.
func hang(conn net.Conn, _ string) { _, _ = io.Copy(io.Discard, conn) }

const opened = "HTTP/1.1 200 Connection established\r\n\r\n"

// openedThenHang accepts and stays silent.
func openedThenHang(conn net.Conn, host string) {
	say(opened)(conn, host)
	hang(conn, host)
}

// openedWithData sends a first byte along with the answer.
func openedWithData(conn net.Conn, host string) {
	say(opened+"x")(conn, host)
	hang(conn, host)
}

// forward connects to the target and copies both ways.
func forward(conn net.Conn, host string) {
	up, err := net.Dial("tcp", host)
	if err != nil {
		say("HTTP/1.1 503 Service Unavailable\r\nX-Squid-Error: ERR_CONNECT_FAIL 111\r\n\r\n")(conn, host)
		return
	}
	defer func() { _ = up.Close() }()
	say(opened)(conn, host)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, conn)
		_ = up.Close()
	}()
	_, _ = io.Copy(conn, up)
	_ = conn.Close()
	<-done
}

// serve starts the proxy and gives its address.
func serve(t *testing.T, p proxy) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.handle(conn)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-served
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

func (p proxy) handle(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("ci:"+password))
	switch {
	case req.Host == MetadataTarget:
		p.metadata(conn, req.Host)
	case req.Header.Get("Proxy-Authorization") == "":
		p.anonymous(conn, req.Host)
	case req.Header.Get("Proxy-Authorization") != want:
		say("HTTP/1.1 407 Wrong\r\n\r\n")(conn, req.Host)
	default:
		p.target(conn, req.Host)
	}
}

// good is a proxy as it should be.
func good() proxy {
	return proxy{
		anonymous: say("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"),
		target:    forward,
		metadata:  say("HTTP/1.1 403 Forbidden\r\n\r\n"),
	}
}

func probing(addr netip.AddrPort, target string) Probe {
	return Probe{Proxy: addr, User: "ci", Password: egress.NewSecret(password), Target: target, StepTimeout: 10 * time.Second}
}

// tlsTarget is a server that speaks TLS.
func tlsTarget(t *testing.T) string {
	t.Helper()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestRunAcceptsAProxyThatForwards(t *testing.T) {
	if err := probing(serve(t, good()), tlsTarget(t)).Run(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRunAcceptsATargetThatSpeaksFirst(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		say("SSH-2.0-test\r\n")(conn, "")
		hang(conn, "")
		_ = conn.Close()
	}()
	if err := probing(serve(t, good()), l.Addr().String()).Run(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRunSpeaksHTTPToPort80(t *testing.T) {
	p := good()
	p.target = func(conn net.Conn, host string) {
		say(opened)(conn, host)
		req, err := http.ReadRequest(bufio.NewReader(conn))
		if err == nil && req.Method == http.MethodHead && req.Host == "plain.test" {
			say("H")(conn, host)
		}
	}
	if err := probing(serve(t, p), "plain.test:80").Run(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRunSaysWhichStepFailedAndWhy(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*proxy)
		step   Step
		seen   string
		final  bool
	}{
		"open":                       {func(p *proxy) { p.anonymous = forward }, StepRefusesAnonymous, "open to everyone", true},
		"open, other success":        {func(p *proxy) { p.anonymous = say("HTTP/1.1 204 Whatever\r\n\r\n") }, StepRefusesAnonymous, "open to everyone", true},
		"anonymous 403":              {func(p *proxy) { p.anonymous = say("HTTP/1.1 403 Forbidden\r\n\r\n") }, StepRefusesAnonymous, `"403 Forbidden" instead of 407`, false},
		"anonymous 401":              {func(p *proxy) { p.anonymous = say("HTTP/1.1 401 Unauthorized\r\n\r\n") }, StepRefusesAnonymous, `"401 Unauthorized"`, false},
		"anonymous 503":              {func(p *proxy) { p.anonymous = say("HTTP/1.1 503 Service Unavailable\r\n\r\n") }, StepRefusesAnonymous, `"503`, false},
		"anonymous hangs":            {func(p *proxy) { p.anonymous = hang }, StepRefusesAnonymous, "did not answer a CONNECT without credentials in time", false},
		"anonymous closes":           {func(p *proxy) { p.anonymous = say("") }, StepRefusesAnonymous, "closed the connection", false},
		"not HTTP":                   {func(p *proxy) { p.anonymous = say("SSH-2.0-OpenSSH\r\n\r\n") }, StepRefusesAnonymous, "in HTTP", false},
		"endless header":             {func(p *proxy) { p.anonymous = say("HTTP/1.1 407 X\r\n" + strings.Repeat("A: b\r\n", maxAnswer)) }, StepRefusesAnonymous, "in HTTP", false},
		"wrong credentials":          {func(p *proxy) { p.target = say("HTTP/1.1 407 Again\r\n\r\n") }, StepForwards, "does not accept the client's credentials", false},
		"wrong credentials, 401":     {func(p *proxy) { p.target = say("HTTP/1.1 401 No\r\n\r\n") }, StepForwards, "does not accept the client's credentials", false},
		"policy refuses":             {func(p *proxy) { p.target = say("HTTP/1.1 403 Forbidden\r\n\r\n") }, StepForwards, "its policy does not allow the target", false},
		"target unreachable":         {func(p *proxy) { p.target = say("HTTP/1.1 503 X\r\nX-Squid-Error: ERR_DNS_FAIL 0\r\n\r\n") }, StepForwards, "(ERR_DNS_FAIL 0)", false},
		"redirect":                   {func(p *proxy) { p.target = say("HTTP/1.1 302 Found\r\n\r\n") }, StepForwards, "does not forward", false},
		"200, then EOF":              {func(p *proxy) { p.target = say(opened) }, StepForwards, "closed the tunnel without a byte", false},
		"200, then silence":          {func(p *proxy) { p.target = openedThenHang }, StepForwards, "nothing came back", false},
		"target hangs":               {func(p *proxy) { p.target = hang }, StepForwards, "did not answer a CONNECT to", false},
		"target closes":              {func(p *proxy) { p.target = say("") }, StepForwards, "closed the connection", false},
		"metadata reachable":         {func(p *proxy) { p.metadata = openedWithData }, StepRefusesMetadata, "metadata service can be reached", true},
		"metadata 200, then silence": {func(p *proxy) { p.metadata = openedThenHang }, StepRefusesMetadata, "kept the tunnel open", false},
		"metadata hangs":             {func(p *proxy) { p.metadata = hang }, StepRefusesMetadata, "did not answer a CONNECT to 169.254.169.254:80", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := good()
			c.change(&p)
			probe := probing(serve(t, p), tlsTarget(t))
			probe.StepTimeout = time.Second
			err := probe.Run(t.Context())
			var failure *Failure
			if !errors.As(err, &failure) {
				t.Fatalf("got %v, want a failure", err)
			}
			if failure.Step != c.step || failure.Final != c.final || !strings.Contains(failure.Seen, c.seen) {
				t.Errorf("got step %s, final %t: %s\nwant step %s, final %t, %q", failure.Step, failure.Final, failure.Seen, c.step, c.final, c.seen)
			}
			if strings.Contains(err.Error(), password) {
				t.Errorf("the error holds the password: %v", err)
			}
		})
	}
}

func TestMetadataCountsAsRefusedWithoutAByteOfData(t *testing.T) {
	for name, metadata := range map[string]func(net.Conn, string){
		"403": say("HTTP/1.1 403 Forbidden\r\n\r\n"), "407": say("HTTP/1.1 407 X\r\n\r\n"), "502": say("HTTP/1.1 502 X\r\n\r\n"),
		"closed": say(""), "200, then EOF": say(opened),
	} {
		t.Run(name, func(t *testing.T) {
			p := good()
			p.metadata = metadata
			probe := probing(serve(t, p), tlsTarget(t))
			if err := probe.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if err := probe.RunWithoutCredentials(t.Context()); err != nil {
				t.Errorf("without credentials: %v", err)
			}
		})
	}
}

func TestRunWithoutCredentialsNeedsNoTargetAndSendsNoCredentials(t *testing.T) {
	p := good()
	p.target = func(net.Conn, string) { t.Error("credentials were sent") }
	if err := (Probe{Proxy: serve(t, p)}).RunWithoutCredentials(t.Context()); err != nil {
		t.Error(err)
	}
	p.metadata = openedWithData
	var failure *Failure
	err := (Probe{Proxy: serve(t, p)}).RunWithoutCredentials(t.Context())
	if !errors.As(err, &failure) || failure.Step != StepRefusesMetadata || !failure.Final {
		t.Errorf("got %v, want metadata reachable", err)
	}
}

func TestRunSaysThatNothingListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort(l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var failure *Failure
	err = probing(addr, "a.test:443").Run(t.Context())
	if !errors.As(err, &failure) || failure.Step != StepConnect || failure.Final || !strings.Contains(err.Error(), addr.String()) {
		t.Errorf("got %v", err)
	}
}

func TestRunEndsWhenItsContextDoes(t *testing.T) {
	for name, change := range map[string]func(*proxy){
		"while anonymous": func(p *proxy) { p.anonymous = hang },
		"in the tunnel":   func(p *proxy) { p.target = openedThenHang },
	} {
		t.Run(name, func(t *testing.T) {
			p := good()
			asked := make(chan struct{}, 1)
			change(&p)
			for _, handler := range []*func(net.Conn, string){&p.anonymous, &p.target} {
				inner := *handler
				*handler = func(conn net.Conn, host string) {
					select {
					case asked <- struct{}{}:
					default:
					}
					inner(conn, host)
				}
			}
			probe := probing(serve(t, p), tlsTarget(t))
			probe.StepTimeout = time.Hour
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-asked
				cancel()
			}()
			if err := probe.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want the context's error", err)
			}
		})
	}
}

func TestRunRefusesATargetThatIsNoHostAndPort(t *testing.T) {
	for _, target := range []string{"", "a.test", ":443", "a.test:", "a b:443", "a.test:443\r\nX: y", "a.test:4\n43", "ü.test:443"} {
		var failure *Failure
		err := (Probe{Proxy: netip.MustParseAddrPort("127.0.0.1:1"), Target: target}).Run(t.Context())
		if !errors.As(err, &failure) || !failure.Final || failure.Step != StepForwards {
			t.Errorf("%q: got %v", target, err)
		}
	}
}

func TestRunLeavesNoGoroutineBehind(t *testing.T) {
	addr, target := serve(t, good()), tlsTarget(t)
	before := runtime.NumGoroutine()
	for range 20 {
		if err := probing(addr, target).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > before+2 {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestRunUsesTheDialer(t *testing.T) {
	d := &countingDialer{}
	probe := probing(serve(t, good()), tlsTarget(t))
	probe.Dialer = d
	if err := probe.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if d.n != 3 {
		t.Errorf("dialled %d times, want 3", d.n)
	}
}

type countingDialer struct {
	net.Dialer
	n int
}

func (d *countingDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d.n++
	return d.Dialer.DialContext(ctx, network, address)
}
