package connection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
)

const (
	// maxInFlight is one less than what a daemon serves at once for a client
	// by default (max_client_requests in libvirtd.conf): a call beyond that
	// would wait unseen.
	maxInFlight = 4
	// retireGrace is how long the other calls of a connection that one call
	// gave up may still take.
	retireGrace = 2 * time.Second
	// goodbyeBound is how long Close waits for the daemon's farewell.
	goodbyeBound = time.Second
)

// Pool makes calls to one host. It connects when the first call needs it, keeps
// the connection for the next ones and replaces it when it is lost. Its
// methods may be called from any goroutine; hosts do not wait for each other.
type Pool struct {
	host        Host
	endpoint    endpoint
	invalid     error // what Validate said
	transport   transport
	callTimeout time.Duration
	dialTimeout time.Duration
	grace       time.Duration
	slots       chan struct{}
	// within gives the context of one attempt to connect
	within func(context.Context) (context.Context, context.CancelFunc)

	mu       sync.Mutex
	closed   bool
	current  *session // takes new calls; nil when there is none
	dialling *dial    // makes the next one; nil when nobody does
	sessions map[*session]struct{}
}

// transport makes byte streams to a host's daemon. Its errors are
// *egress.Fault without what was being done.
type transport interface {
	open(ctx context.Context) (net.Conn, error)
	close()
}

// New makes a pool for a host. It talks to nobody; a host that Validate refuses
// gives that error at every call.
func New(h Host) *Pool {
	p := &Pool{
		host:        h,
		invalid:     Validate(h),
		callTimeout: h.CallTimeout,
		dialTimeout: h.SSH.Timeout,
		grace:       retireGrace,
		slots:       make(chan struct{}, maxInFlight),
		sessions:    map[*session]struct{}{},
	}
	if p.callTimeout == 0 {
		p.callTimeout = DefaultCallTimeout
	}
	if h.TLS.Timeout != 0 {
		p.dialTimeout = h.TLS.Timeout
	}
	if p.dialTimeout == 0 {
		p.dialTimeout = DefaultDialTimeout
	}
	p.within = func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(ctx, p.dialTimeout, &dialTimeout{p.dialTimeout})
	}
	if p.invalid != nil {
		return p
	}
	p.endpoint, p.invalid = parseEndpoint(h)
	switch p.endpoint.way {
	case bySSH:
		p.transport = newSSHTransport(p.endpoint)
	case byTLS:
		p.transport = &tlsTransport{host: h, endpoint: p.endpoint}
	case byTCP:
		p.transport = &tcpTransport{address: p.endpoint.address()}
	case byUnix:
		p.transport = &unixTransport{sockets: p.endpoint.sockets}
	}
	return p
}

// Write makes one attempt at a call that changes something. what names it in
// errors, as a gerund phrase: "defining domain ci-1". fn runs in a goroutine of
// its own and must not touch what its caller uses after Write has returned.
//
// A libvirt.Error from the daemon can be had by errors.As. When the connection
// is lost or the daemon does not answer in time the error is an *egress.Fault
// of kind egress.ErrUnreachable and whether the call took effect is not known;
// when ctx ends first the error wraps ctx's.
func (p *Pool) Write(ctx context.Context, what string, fn func(*libvirt.Libvirt) error) error {
	return p.call(ctx, what, fn)
}

// Read makes a call that may be repeated: as Write, but a lost connection is
// replaced once and fn called again.
func (p *Pool) Read(ctx context.Context, what string, fn func(*libvirt.Libvirt) error) error {
	err := p.call(ctx, what, fn)
	var lost *lostError
	if errors.As(err, &lost) && ctx.Err() == nil {
		return p.call(ctx, what, fn)
	}
	return err
}

// Stream makes one attempt at a call that moves a stream (an upload, a
// console) on a connection of its own, which is closed afterwards. It is
// bounded by ctx alone. go-libvirt goes on reading an upload's source until
// that ends or fails, so the source must fail when ctx ends; and a download's
// writer must never fail, since go-libvirt then blocks for ever.
func (p *Pool) Stream(ctx context.Context, what string, fn func(*libvirt.Libvirt) error) error {
	if p.invalid != nil {
		return p.invalid
	}
	if ctx.Err() != nil {
		return p.gaveUp(ctx, what, "not started")
	}
	s, err := p.connect(ctx)
	if err != nil {
		return p.unconnected(ctx, what, err)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		_ = s.wire.Close()
		return p.isClosed(what)
	}
	p.sessions[s] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.shut(s)
	}()
	return p.run(ctx, s, what, fn)
}

// Close gives up all connections, and with them the calls that still run. Calls
// after Close fail.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	if p.dialling != nil {
		p.dialling.cancel(errPoolClosed)
	}
	idle := p.current
	if idle != nil && idle.inFlight > 0 {
		idle = nil
	}
	p.current = nil
	p.mu.Unlock()

	if idle != nil {
		idle.sayGoodbye(goodbyeBound)
	}

	p.mu.Lock()
	for s := range p.sessions {
		p.shut(s)
	}
	p.mu.Unlock()
	if p.transport != nil {
		p.transport.close()
	}
	return nil
}

// call runs fn on the shared connection, once.
func (p *Pool) call(ctx context.Context, what string, fn func(*libvirt.Libvirt) error) error {
	if p.invalid != nil {
		return p.invalid
	}
	if ctx.Err() != nil {
		return p.gaveUp(ctx, what, "not started")
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return p.gaveUp(ctx, what, fmt.Sprintf("still waiting for one of %d other calls to end", maxInFlight))
	}
	s, err := p.session(ctx)
	if err != nil {
		return p.unconnected(ctx, what, err)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, p.callTimeout, errCallTimeout)
	defer cancel()
	err = p.run(bounded, s, what, fn)

	p.mu.Lock()
	defer p.mu.Unlock()
	s.inFlight--
	var abandoned *abandonedError
	if errors.As(err, &abandoned) {
		p.retire(s)
	}
	p.settle(s)
	return err
}

// run calls fn and waits until it returns or ctx ends.
func (p *Pool) run(ctx context.Context, s *session, what string, fn func(*libvirt.Libvirt) error) error {
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- fn(s.lv) }()
	select {
	case err := <-done:
		return p.explain(s, what, err)
	case <-ctx.Done():
	}
	select {
	case err := <-done: // it came to an end at the same moment
		return p.explain(s, what, err)
	default:
		return p.abandoned(ctx, what, time.Since(began))
	}
}

// retire keeps new calls away from a connection that one call has given up,
// and closes it when its other calls have ended or had their time.
func (p *Pool) retire(s *session) {
	if p.current == s {
		p.current = nil
	}
	if s.retired {
		return
	}
	s.retired = true
	s.grace = time.AfterFunc(p.grace, func() { s.wire.fail(errRetired) })
}

// settle closes the connection where nobody has any more use for it.
func (p *Pool) settle(s *session) {
	if s.wire.isLost() || (s.retired && s.inFlight == 0) {
		p.shut(s)
	}
}

// shut closes a connection and forgets it.
func (p *Pool) shut(s *session) {
	if p.current == s {
		p.current = nil
	}
	if s.grace != nil {
		s.grace.Stop()
	}
	delete(p.sessions, s)
	_ = s.wire.Close()
}
