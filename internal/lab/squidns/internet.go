package squidns

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Ports are those the origin server listens on, on every address there is.
var Ports = []int{22, 25, 80, 443, 8080, 8443}

// Internet is what lies behind the proxy: one origin server on every address
// and a DNS server for names.
type Internet struct {
	// Names maps a name to its answers. The n-th look-up of a name gets its
	// n-th answer, later ones the last. Set it before use.
	Names map[string][][]netip.Addr

	mu        sync.Mutex
	asked     map[string]int
	certs     *tls.Config
	listeners []net.Listener
	dns       net.PacketConn
	running   sync.WaitGroup
}

// Start begins to serve. Close ends it.
func (in *Internet) Start() error {
	in.asked = map[string]int{}
	cert, err := selfSigned()
	if err != nil {
		return err
	}
	in.certs = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	for _, port := range Ports {
		l, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			return errors.Join(fmt.Errorf("starting the origin server: %w", err), in.Close())
		}
		in.listeners = append(in.listeners, l)
		in.running.Go(func() { in.accept(l) })
	}
	in.dns, err = net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		return errors.Join(fmt.Errorf("starting the DNS server: %w", err), in.Close())
	}
	in.running.Go(func() { in.serveDNS(in.dns) })
	return nil
}

// Close ends all servers and waits for them.
func (in *Internet) Close() error {
	var errs []error
	for _, l := range in.listeners {
		errs = append(errs, l.Close())
	}
	if in.dns != nil {
		errs = append(errs, in.dns.Close())
	}
	in.running.Wait()
	return errors.Join(errs...)
}

// Asked tells how often the DNS server was asked for a name's addresses.
func (in *Internet) Asked(name string) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.asked[name]
}

// originTimeout bounds how long the origin waits for a silent client.
const originTimeout = 5 * time.Second

func (in *Internet) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		in.running.Go(func() { in.answer(conn) })
	}
}

// answer speaks TLS to whoever begins with a TLS record, and in it or without
// it answers one HTTP request with the address it arrived at.
func (in *Internet) answer(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(originTimeout)); err != nil {
		return
	}
	peek := bufio.NewReader(conn)
	first, err := peek.Peek(1)
	if err != nil {
		return
	}
	var stream net.Conn = buffered{conn, peek}
	if first[0] == 0x16 {
		stream = tls.Server(stream, in.certs)
	}
	lines := bufio.NewReader(stream)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		if strings.TrimSpace(line) == "" {
			break
		}
	}
	body := reached + conn.LocalAddr().String() + "\n"
	_, _ = fmt.Fprintf(stream, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
}

// reached begins the origin's answer.
const reached = "reached "

// buffered is a connection of which some bytes were read already.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

func (in *Internet) serveDNS(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if reply, err := in.resolve(buf[:n]); err == nil {
			_, _ = conn.WriteTo(reply, from)
		}
	}
}

// resolve answers a query for A or AAAA; both of one look-up come from the
// same entry of Names. Answers have a TTL of 0.
func (in *Internet) resolve(query []byte) ([]byte, error) {
	var msg dnsmessage.Message
	if err := msg.Unpack(query); err != nil || len(msg.Questions) != 1 {
		return nil, errors.Join(errors.New("not a DNS query"), err)
	}
	q := msg.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	answers := in.Names[name]
	msg.Response, msg.RecursionAvailable = true, true
	msg.Additionals = nil
	if len(answers) == 0 {
		msg.RCode = dnsmessage.RCodeNameError
		in.count(name, q.Type)
		return msg.Pack()
	}
	header := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}
	for _, addr := range answers[min(in.count(name, q.Type), len(answers)-1)] {
		switch {
		case addr.Is4() && q.Type == dnsmessage.TypeA:
			msg.Answers = append(msg.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
			msg.Answers = append(msg.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	return msg.Pack()
}

// count notes a look-up and gives how many came before it. Squid asks for A
// and AAAA each time; A is what counts.
func (in *Internet) count(name string, kind dnsmessage.Type) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	if kind == dnsmessage.TypeA {
		in.asked[name]++
		return in.asked[name] - 1
	}
	return max(in.asked[name]-1, 0)
}

// Addresses is a list of answers of which each has one address.
func Addresses(texts ...string) [][]netip.Addr {
	var out [][]netip.Addr
	for _, text := range texts {
		out = append(out, []netip.Addr{netip.MustParseAddr(text)})
	}
	return slices.Clip(out)
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making the origin's key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making the origin's certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
