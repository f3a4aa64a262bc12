// Package sshserver is an SSH server inside the test's process. It forwards
// unix sockets (direct-streamlocal@openssh.com, openssh-portable's PROTOCOL,
// section 2.4) as the SSH server of a hypervisor does, and TCP (direct-tcpip,
// RFC 4254, section 7.2) as that of a bastion does; and it can stall where real
// servers and networks do.
package sshserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"
)

// Stall is a point at which the server stops answering.
type Stall int

// The points at which a server can stall.
const (
	// Never answers everything.
	Never Stall = iota
	// AtBanner accepts the TCP connection and says nothing.
	AtBanner
	// AtKeyExchange sends its version and nothing after it.
	AtKeyExchange
	// AfterKeyExchange goes quiet before the client may authenticate.
	AfterKeyExchange
	// AtAuth leaves the client's keys unanswered.
	AtAuth
	// AfterAuth lets the client in and then answers nothing.
	AfterAuth
	// AtChannel leaves requests to open a channel unanswered.
	AtChannel
	// AtKeepalive leaves the client's global requests unanswered.
	AtKeepalive
)

// Options are what a server is started with.
type Options struct {
	// HostKeys identify the server; at least one.
	HostKeys []ssh.Signer
	// AuthorizedKeys may log in, under any user name.
	AuthorizedKeys []ssh.PublicKey
	// Stall is where the server stops answering.
	Stall Stall
	// ForbidForwarding refuses all channels as "administratively prohibited",
	// as OpenSSH does with AllowStreamLocalForwarding no.
	ForbidForwarding bool
	// Sockets maps the paths that clients ask for to real ones. A path that
	// it does not hold is refused as a path without a socket is.
	Sockets map[string]string
	// Addresses maps the host:port that clients ask for to a real one. One
	// that it does not hold is refused as an unknown name is.
	Addresses map[string]string
}

// Server is a running SSH server.
type Server struct {
	options  Options
	config   *ssh.ServerConfig
	listener net.Listener
	stall    atomic.Int64
	accepted atomic.Int64
	loggedIn atomic.Int64
	channels atomic.Int64
	requests atomic.Int64
	stalled  atomic.Int64
	stopped  chan struct{}

	mu    sync.Mutex
	open  map[net.Conn]struct{}
	asked []string
	users []string
	work  sync.WaitGroup
}

// Start starts a server on a free port of 127.0.0.1.
func Start(options Options) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for SSH: %w", err)
	}
	s := &Server{
		options:  options,
		listener: listener,
		stopped:  make(chan struct{}),
		open:     map[net.Conn]struct{}{},
	}
	s.stall.Store(int64(options.Stall))
	s.config = &ssh.ServerConfig{PublicKeyCallback: s.authenticate, BannerCallback: s.greet}
	for _, key := range options.HostKeys {
		s.config.AddHostKey(key)
	}
	s.work.Go(s.accept)
	return s, nil
}

// Addr gives the server's host:port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// SetStall changes where the server stops answering, for what comes next.
func (s *Server) SetStall(at Stall) { s.stall.Store(int64(at)) }

// Connections gives how many TCP connections were accepted so far.
func (s *Server) Connections() int { return int(s.accepted.Load()) }

// Logins gives how many clients have authenticated so far.
func (s *Server) Logins() int { return int(s.loggedIn.Load()) }

// Channels gives how many forwards are open now.
func (s *Server) Channels() int { return int(s.channels.Load()) }

// Requests gives how many global requests, keepalives among them, were
// answered so far.
func (s *Server) Requests() int { return int(s.requests.Load()) }

// Open gives how many TCP connections are open now.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Stalled gives how often the server has stopped answering so far.
func (s *Server) Stalled() int { return int(s.stalled.Load()) }

// Asked gives the socket paths and addresses that clients asked for, in order.
func (s *Server) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// Users gives the user names that clients offered a key for, in order.
func (s *Server) Users() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}

// DropAll closes all connections, as a broken network path does.
func (s *Server) DropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.open {
		_ = conn.Close()
	}
}

// Close stops the server and waits until all its goroutines have ended.
func (s *Server) Close() error {
	s.mu.Lock()
	select {
	case <-s.stopped:
	default:
		close(s.stopped)
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.DropAll()
	s.work.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("closing the SSH server: %w", err)
	}
	return nil
}

// stallsAt tells whether the server is to go quiet now, and counts it.
func (s *Server) stallsAt(at Stall) bool {
	if Stall(s.stall.Load()) != at {
		return false
	}
	s.stalled.Add(1)
	return true
}

// greet is called after the key exchange, when the client asks to authenticate.
func (s *Server) greet(ssh.ConnMetadata) string {
	if s.stallsAt(AfterKeyExchange) {
		<-s.stopped
	}
	return ""
}

func (s *Server) authenticate(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	s.mu.Lock()
	s.users = append(s.users, meta.User())
	s.mu.Unlock()
	if s.stallsAt(AtAuth) {
		<-s.stopped
		return nil, errors.New("server stopped")
	}
	for _, authorized := range s.options.AuthorizedKeys {
		if bytes.Equal(authorized.Marshal(), key.Marshal()) {
			return &ssh.Permissions{}, nil
		}
	}
	return nil, errors.New("key is not authorized")
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.accepted.Add(1)
		s.mu.Lock()
		select {
		case <-s.stopped:
			s.mu.Unlock()
			_ = conn.Close()
			return
		default:
		}
		s.open[conn] = struct{}{}
		s.mu.Unlock()
		s.work.Go(func() { s.serve(conn) })
	}
}

func (s *Server) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.open, conn)
		s.mu.Unlock()
	}()
	if at := Stall(s.stall.Load()); at == AtBanner || at == AtKeyExchange {
		if at == AtKeyExchange {
			if _, err := io.WriteString(conn, "SSH-2.0-stalled\r\n"); err != nil {
				return
			}
		}
		// it has gone quiet when somebody waits for it
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			s.stalled.Add(1)
			_, _ = io.Copy(io.Discard, conn)
		}
		return
	}
	server, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		return
	}
	s.loggedIn.Add(1)
	if Stall(s.stall.Load()) == AfterAuth {
		for range channels {
			s.stalled.Add(1) // it has gone quiet when somebody wants something
		}
		return
	}
	s.work.Go(func() { s.answerRequests(requests) })
	for request := range channels {
		s.work.Go(func() { s.forward(request) })
	}
	_ = server.Wait()
}

// answerRequests refuses every global request, which is how OpenSSH answers a
// keepalive.
func (s *Server) answerRequests(requests <-chan *ssh.Request) {
	for request := range requests {
		if request.WantReply && !s.stallsAt(AtKeepalive) {
			_ = request.Reply(false, nil)
			s.requests.Add(1)
		}
	}
}

// forward serves one channel.
func (s *Server) forward(request ssh.NewChannel) {
	if s.stallsAt(AtChannel) {
		return
	}
	if s.options.ForbidForwarding {
		_ = request.Reject(ssh.Prohibited, "open failed")
		return
	}
	network, asked, err := wanted(request)
	if err != nil {
		_ = request.Reject(ssh.UnknownChannelType, err.Error())
		return
	}
	s.mu.Lock()
	s.asked = append(s.asked, asked)
	s.mu.Unlock()
	path, message := s.options.Sockets[asked], "open failed" // which is all that OpenSSH says
	if network == "tcp" {
		path, message = s.options.Addresses[asked], "Name or service not known"
	}
	if path == "" {
		_ = request.Reject(ssh.ConnectionFailed, message)
		return
	}
	socket, err := new(net.Dialer).DialContext(context.Background(), network, path)
	if err != nil {
		_ = request.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	channel, requests, err := request.Accept()
	if err != nil {
		_ = socket.Close()
		return
	}
	s.channels.Add(1)
	defer s.channels.Add(-1)
	go ssh.DiscardRequests(requests)
	splice(channel, socket)
}

// wanted gives what a client wants to be connected to.
func wanted(request ssh.NewChannel) (network, address string, err error) {
	switch request.ChannelType() {
	case "direct-streamlocal@openssh.com":
		var target struct {
			Path      string
			Reserved0 string
			Reserved1 uint32
		}
		err := ssh.Unmarshal(request.ExtraData(), &target)
		return "unix", target.Path, err
	case "direct-tcpip":
		var target struct {
			Host       string
			Port       uint32
			Origin     string
			OriginPort uint32
		}
		err := ssh.Unmarshal(request.ExtraData(), &target)
		return "tcp", net.JoinHostPort(target.Host, strconv.FormatUint(uint64(target.Port), 10)), err
	}
	return "", "", errors.New("unknown channel type")
}

// splice copies both ways until either side ends, then closes both.
func splice(a, b io.ReadWriteCloser) {
	var copies sync.WaitGroup
	one := func(to, from io.ReadWriteCloser) {
		_, _ = io.Copy(to, from)
		_ = to.Close()
		_ = from.Close()
	}
	copies.Go(func() { one(a, b) })
	copies.Go(func() { one(b, a) })
	copies.Wait()
}
