package squidns

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// requestTimeout bounds one request; it outlasts Squid's own time-outs.
const requestTimeout = 25 * time.Second

// Credentials are what a client sends; the zero value sends none.
type Credentials struct{ User, Password string }

// Outcome is what came of a request.
type Outcome struct {
	// Status is the proxy's answer, 0 when it closed without one.
	Status int
	// Reached is the origin's local address when its answer came back, or "".
	Reached string
}

// String is for test failures.
func (o Outcome) String() string {
	if o.Reached != "" {
		return fmt.Sprintf("status %d, reached %s", o.Status, o.Reached)
	}
	return fmt.Sprintf("status %d, nothing reached", o.Status)
}

// Connect asks the proxy for a tunnel to target, written as given, and asks
// the origin for its address through it.
func Connect(ctx context.Context, proxy netip.AddrPort, who Credentials, target string) (Outcome, error) {
	return exchange(ctx, proxy, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n"+who.header()+"\r\n", true)
}

// Get asks the proxy for a URL, written as given.
func Get(ctx context.Context, proxy netip.AddrPort, who Credentials, url string) (Outcome, error) {
	return exchange(ctx, proxy, "GET "+url+" HTTP/1.1\r\nHost: www.allowed.test\r\nConnection: close\r\n"+who.header()+"\r\n", false)
}

func (c Credentials) header() string {
	if c == (Credentials{}) {
		return ""
	}
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(c.User+":"+c.Password)) + "\r\n"
}

func exchange(ctx context.Context, proxy netip.AddrPort, request string, tunnel bool) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", proxy.String())
	if err != nil {
		return Outcome{}, fmt.Errorf("connecting to squid: %w", err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := io.WriteString(conn, request); err != nil {
		return Outcome{}, fmt.Errorf("sending the request: %w", err)
	}
	method, _, _ := strings.Cut(request, " ")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		if ctx.Err() != nil {
			return Outcome{}, fmt.Errorf("no answer within %s", requestTimeout)
		}
		return Outcome{}, nil
	}
	defer func() { _ = resp.Body.Close() }()
	out := Outcome{Status: resp.StatusCode}
	var body io.Reader = resp.Body
	if tunnel && resp.StatusCode == http.StatusOK {
		if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			return out, nil
		}
		body = r
	}
	text, err := io.ReadAll(body)
	if err != nil && ctx.Err() != nil {
		return out, errors.Join(fmt.Errorf("the answer did not end within %s", requestTimeout), err)
	}
	if _, after, ok := strings.Cut(string(text), reached); ok {
		out.Reached = strings.TrimSpace(after)
	}
	return out, nil
}
