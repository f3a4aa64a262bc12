package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/digitalocean/go-libvirt/socket"
)

// Proxy forwards libvirt's protocol between clients and a daemon's unix
// socket, counts the calls and injects faults. Its methods may be called at
// any time and from any goroutine.
type Proxy struct {
	listener net.Listener
	upstream string
	rules    ruleset
	latency  atomic.Int64
	accepted atomic.Int64

	mu     sync.Mutex
	open   map[*link]struct{}
	closed bool
	work   sync.WaitGroup
}

// Listen makes a proxy at socketPath in front of the daemon at upstream. The
// daemon is dialled once for each client, when the client connects.
func Listen(socketPath, upstream string) (*Proxy, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", socketPath)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", socketPath, err)
	}
	p := &Proxy{
		listener: listener,
		upstream: upstream,
		rules:    ruleset{calls: map[uint32]int{}},
		open:     map[*link]struct{}{},
	}
	p.work.Go(p.accept)
	return p, nil
}

// Inject adds rules. Each counts its procedure's occurrences from now on; of
// several that are meant for one call the first added wins.
func (p *Proxy) Inject(rules ...Rule) { p.rules.add(rules...) }

// Heal removes all rules. What hangs already goes on hanging.
func (p *Proxy) Heal() { p.rules.clear() }

// SetLatency delays each packet that arrives from now on by d, in both
// directions and without changing their order: a call's round trip grows by
// two d.
func (p *Proxy) SetLatency(d time.Duration) { p.latency.Store(int64(d)) }

// Calls gives how often each procedure was called, those that a rule kept
// from the daemon included.
func (p *Proxy) Calls() map[uint32]int { return p.rules.counts() }

// Connections gives how many clients have connected so far.
func (p *Proxy) Connections() int { return int(p.accepted.Load()) }

// Open gives how many clients are connected now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// DropAll closes all connections, as a daemon's restart does.
func (p *Proxy) DropAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.open {
		l.close()
	}
}

// Close stops listening, closes all connections and waits until both are done.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.DropAll()
	p.work.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("closing the proxy's socket: %w", err)
	}
	return nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		p.work.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	daemon, err := new(net.Dialer).DialContext(context.Background(), "unix", p.upstream)
	if err != nil {
		_ = client.Close() // what a client of a dead daemon sees
		return
	}
	l := &link{
		proxy:    p,
		client:   client,
		daemon:   daemon,
		toClient: make(chan delayed, queueLength),
		toDaemon: make(chan delayed, queueLength),
		done:     make(chan struct{}),
		pending:  map[int32]*watched{},
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		l.close()
		return
	}
	p.open[l] = struct{}{}
	p.mu.Unlock()

	var pumps sync.WaitGroup
	pumps.Go(func() { l.read(client, l.fromClient) })
	pumps.Go(func() { l.read(daemon, l.fromDaemon) })
	pumps.Go(func() { l.write(client, l.toClient) })
	pumps.Go(func() { l.write(daemon, l.toDaemon) })
	pumps.Wait()

	p.mu.Lock()
	delete(p.open, l)
	p.mu.Unlock()
}

// queueLength bounds the packets that wait for their delay in one direction.
const queueLength = 64

// link is one client's connection to the daemon.
type link struct {
	proxy              *Proxy
	client, daemon     net.Conn
	toClient, toDaemon chan delayed

	once sync.Once
	done chan struct{}

	mu      sync.Mutex
	pending map[int32]*watched
}

// watched is a call under a rule, from the call to the end of its stream.
type watched struct {
	rule   *Rule
	passed int64
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close()
		_ = l.daemon.Close()
	})
}

// read hands each packet to handle until the connection ends.
func (l *link) read(from net.Conn, handle func(packet)) {
	defer l.close()
	for {
		p, err := readPacket(from)
		if err != nil {
			return
		}
		handle(p)
	}
}

// write sends what is queued, each packet when it is due.
func (l *link) write(to net.Conn, queue <-chan delayed) {
	defer l.close()
	for {
		select {
		case d := <-queue:
			if !l.until(d.due) {
				return
			}
			if _, err := to.Write(d.data); err != nil {
				return
			}
		case <-l.done:
			return
		}
	}
}

// until waits for a moment; false means that the link was closed before it.
func (l *link) until(due time.Time) bool {
	wait := time.Until(due)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

func (l *link) queue(to chan<- delayed, p packet) {
	d := delayed{data: p.encode(), due: time.Now().Add(time.Duration(l.proxy.latency.Load()))}
	select {
	case to <- d:
	case <-l.done:
	}
}

func (l *link) fromClient(p packet) {
	if !p.isCall() {
		if p.Type == socket.Stream && l.streamBroken(p) {
			return
		}
		l.queue(l.toDaemon, p)
		return
	}
	rule := l.proxy.rules.match(p.procedure())
	if rule == nil {
		l.queue(l.toDaemon, p)
		return
	}
	switch rule.Fault {
	case ErrorReply:
		l.queue(l.toClient, p.answer(socket.Reply, socket.StatusError, rule.Error.encode()))
	case DropBefore:
		l.close()
	case Hang:
	default:
		l.mu.Lock()
		l.pending[p.Serial] = &watched{rule: rule}
		l.mu.Unlock()
		l.queue(l.toDaemon, p)
	}
}

func (l *link) fromDaemon(p packet) {
	if p.Type == socket.Stream && l.streamBroken(p) {
		return
	}
	rule := l.answered(p)
	if rule == nil {
		l.queue(l.toClient, p)
		return
	}
	if rule.Hook != nil {
		if pid, err := peerPID(l.client); err == nil {
			rule.Hook(pid)
		}
	}
	switch rule.Fault {
	case DropAfter:
		l.close()
	case HangReply:
	default:
		l.queue(l.toClient, p)
	}
}

// answered gives the rule that acts on this packet from the daemon, or nil.
func (l *link) answered(p packet) *Rule {
	if !p.isReply() && !p.isStreamEnd() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w, ok := l.pending[p.Serial]
	if !ok {
		return nil
	}
	failed := p.Status == socket.StatusError
	switch {
	case w.rule.Fault == DropStream:
		if failed || p.isStreamEnd() {
			delete(l.pending, p.Serial)
		}
		return nil
	case p.isReply() && w.rule.StreamEnd && !failed:
		return nil
	}
	delete(l.pending, p.Serial)
	return w.rule
}

// streamBroken closes the link, and gives true, when the packet exceeds what a
// DropStream rule lets pass.
func (l *link) streamBroken(p packet) bool {
	l.mu.Lock()
	w, ok := l.pending[p.Serial]
	broken := false
	if ok && w.rule.Fault == DropStream {
		w.passed += int64(len(p.payload))
		broken = w.passed > w.rule.AfterBytes
	}
	l.mu.Unlock()
	if broken {
		l.close()
	}
	return broken
}
