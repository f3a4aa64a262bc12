package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// maxAnswer bounds the header of a proxy's answer, in bytes.
const maxAnswer = 64 << 10

// tunnel is a connection to the proxy. Its reads and writes end with the
// context it was dialled with.
type tunnel struct {
	conn   net.Conn
	r      *bufio.Reader
	detach func() bool
}

// answer is what a proxy said to CONNECT.
type answer struct {
	status int
	// line is the status and Squid's own error name, fit to be printed.
	line string
}

// opened tells whether the proxy says that the tunnel is there.
func (a answer) opened() bool { return a.status >= 200 && a.status < 300 }

// dial connects to the proxy.
func (p Probe) dial(ctx context.Context) (*tunnel, *Failure) {
	var dialer Dialer = &net.Dialer{}
	if p.Dialer != nil {
		dialer = p.Dialer
	}
	conn, err := dialer.DialContext(ctx, "tcp", p.Proxy.String())
	if err != nil {
		return nil, &Failure{Step: StepConnect, Seen: fmt.Sprintf("no connection to the proxy at %s", p.Proxy), Err: err}
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			_ = conn.Close()
			return nil, &Failure{Step: StepConnect, Seen: fmt.Sprintf("no usable connection to the proxy at %s", p.Proxy), Err: err}
		}
	}
	// The deadline does not cover a context that is cancelled before it.
	detach := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return &tunnel{conn: conn, r: bufio.NewReader(conn), detach: detach}, nil
}

func (t *tunnel) close() {
	t.detach()
	_ = t.conn.Close()
}

// credentials gives the value of Proxy-Authorization (RFC 7617). The password
// is sent as it is: the scheme knows no escapes.
func (p Probe) credentials() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(p.User+":"+p.Password.Reveal()))
}

// connect asks for a tunnel to target (RFC 9110, section 9.3.6) and reads the
// header of the answer.
func (t *tunnel) connect(target, credentials string) (answer, error) {
	request := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if credentials != "" {
		request += "Proxy-Authorization: " + credentials + "\r\n"
	}
	if _, err := io.WriteString(t.conn, request+"\r\n"); err != nil {
		return answer{}, err
	}
	head, err := t.readHead()
	if err != nil {
		return answer{}, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(head)), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return answer{}, err
	}
	_ = resp.Body.Close()
	line := resp.Status
	if name := resp.Header.Get("X-Squid-Error"); name != "" {
		line += " (" + name + ")"
	}
	return answer{status: resp.StatusCode, line: line}, nil
}

// readHead reads up to the empty line that ends an answer's header, so that
// what follows stays with the tunnel.
func (t *tunnel) readHead() (string, error) {
	var head strings.Builder
	for {
		line, err := t.r.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		head.Write(line)
		if len(strings.TrimRight(string(line), "\r\n")) == 0 {
			return head.String(), nil
		}
		if head.Len() > maxAnswer {
			return "", errors.New("the answer's header is too long")
		}
	}
}

// awaitByte speaks to the target through the tunnel until one byte came back.
func (t *tunnel) awaitByte(ctx context.Context, target string) error {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return err
	}
	if port == "80" {
		authority := strings.TrimSuffix(target, ":80")
		if _, err := io.WriteString(t.conn, "HEAD / HTTP/1.1\r\nHost: "+authority+"\r\nConnection: close\r\n\r\n"); err != nil {
			return err
		}
		_, err := t.r.ReadByte()
		return err
	}
	stream := &firstByte{Conn: t.conn, r: t.r}
	client := tls.Client(stream, &tls.Config{
		ServerName: host,
		// Whether the target is alive is asked, not who it is: it may well
		// have a certificate of a private authority.
		InsecureSkipVerify: true, //nolint:gosec // nothing is sent over it
		MinVersion:         tls.VersionTLS12,
	})
	err = client.HandshakeContext(ctx)
	if stream.seen {
		return nil
	}
	return err
}

// firstByte is a connection that ends its reader's work once a byte came.
type firstByte struct {
	net.Conn
	r    *bufio.Reader
	seen bool
}

// errSeen ends a handshake that has served its purpose.
var errSeen = errors.New("a byte came back")

func (c *firstByte) Read(p []byte) (int, error) {
	if c.seen {
		return 0, errSeen
	}
	n, err := c.r.Read(p)
	c.seen = n > 0
	return n, err
}
