package wire

import (
	"sync"
	"time"
)

// Fault is a way in which a call goes wrong.
type Fault int

// The faults that a Rule can inject.
const (
	// None forwards the call and its reply; for a rule with only a Hook.
	None Fault = iota
	// ErrorReply answers the call with the rule's Error; the daemon never
	// sees the call.
	ErrorReply
	// DropBefore closes the connection instead of forwarding the call.
	DropBefore
	// DropAfter forwards the call and closes the connection when its reply
	// arrives: the call took effect, the client cannot know.
	DropAfter
	// DropStream forwards the call and closes the connection once AfterBytes
	// of its stream have gone by in either direction.
	DropStream
	// Hang swallows the call and keeps the connection open.
	Hang
	// HangReply forwards the call, swallows its reply and keeps the
	// connection open.
	HangReply
)

// String gives the fault's name, for test names and messages.
func (f Fault) String() string {
	names := [...]string{"none", "error reply", "drop before", "drop after", "drop stream", "hang", "hang reply"}
	if f < 0 || int(f) >= len(names) {
		return "unknown fault"
	}
	return names[f]
}

// Rule says which call goes wrong, and how.
type Rule struct {
	// Procedure is one of the Proc numbers.
	Procedure uint32
	// Nth is the occurrence of the procedure that is meant, the first after
	// the rule was added being 1. Zero means each one.
	Nth int
	// Fault is what goes wrong.
	Fault Fault
	// Error is the answer of an ErrorReply.
	Error Error
	// AfterBytes is how much of a stream passes before DropStream, in bytes.
	AfterBytes int64
	// StreamEnd moves DropAfter, HangReply and Hook from the reply to the call
	// (for an upload: "go ahead") to the daemon's word that the stream is
	// complete.
	StreamEnd bool
	// Hook is called when the reply arrives, before it is forwarded, with the
	// process at the client's end of the socket.
	Hook func(peerPID int)
}

// ruleset decides which rule a call falls under.
type ruleset struct {
	mu    sync.Mutex
	rules []*countedRule
	calls map[uint32]int
}

type countedRule struct {
	Rule
	seen int
}

func (s *ruleset) add(rules ...Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rules {
		s.rules = append(s.rules, &countedRule{Rule: r})
	}
}

func (s *ruleset) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// match counts a call and gives the first rule that is meant for it, or nil.
func (s *ruleset) match(procedure uint32) *Rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[procedure]++
	var found *Rule
	for _, r := range s.rules {
		if r.Procedure != procedure {
			continue
		}
		r.seen++
		if found == nil && (r.Nth == 0 || r.Nth == r.seen) {
			found = &r.Rule
		}
	}
	return found
}

func (s *ruleset) counts() map[uint32]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make(map[uint32]int, len(s.calls))
	for procedure, n := range s.calls {
		counts[procedure] = n
	}
	return counts
}

// delayed is a packet and the moment from which it may go on.
type delayed struct {
	data []byte
	due  time.Time
}
