package kvm

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// guestResult is how a program on the guest ended.
type guestResult struct {
	// ExitCode is the program's.
	ExitCode int
	// Output is what it wrote to stdout and stderr.
	Output string
}

// runOnGuest runs a program on the guest, as root, through the QEMU guest agent
// and waits until it ends. The machine must run. It fails where there is no
// agent, and where the agent is not allowed to run programs, as on the Red Hat
// family by default (QEMU guest agent protocol reference, guest-exec).
func (h *host) runOnGuest(ctx context.Context, dom libvirt.Domain, poll time.Duration, program string, args ...string) (guestResult, error) {
	doing := "running " + program + " on domain " + dom.Name
	command, err := agentCommand("guest-exec", map[string]any{"path": program, "arg": args, "capture-output": true})
	if err != nil {
		return guestResult{}, h.fault(doing, err)
	}
	var started struct {
		PID int `json:"pid"`
	}
	if err := h.askAgent(ctx, dom, doing, command, &started); err != nil {
		return guestResult{}, err
	}
	status, err := agentCommand("guest-exec-status", map[string]any{"pid": started.PID})
	if err != nil {
		return guestResult{}, h.fault(doing, err)
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		var now execStatus
		if err := h.askAgent(ctx, dom, doing, status, &now); err != nil {
			return guestResult{}, err
		}
		if now.Exited {
			return guestResult{ExitCode: now.ExitCode, Output: string(now.Out) + string(now.Err)}, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return guestResult{}, h.fault(doing, ctx.Err())
		}
	}
}

// execStatus is the answer to guest-exec-status.
type execStatus struct {
	Exited   bool       `json:"exited"`
	ExitCode int        `json:"exitcode"`
	Out      agentBytes `json:"out-data"`
	Err      agentBytes `json:"err-data"`
}

// agentBytes are base64 in the agent's JSON.
type agentBytes []byte

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *agentBytes) UnmarshalText(text []byte) error {
	decoded, err := base64.StdEncoding.DecodeString(string(text))
	*b = decoded
	return err
}

// askAgent sends one command to a guest's agent and reads its answer. Few of
// them are under way at once on a host, since a frozen guest holds one for
// seconds.
func (h *host) askAgent(ctx context.Context, dom libvirt.Domain, doing, command string, answer any) error {
	select {
	case h.agents <- struct{}{}:
		defer func() { <-h.agents }()
	case <-ctx.Done():
		return h.fault(doing, ctx.Err())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, agentTimeout, errAgentSilent)
	defer cancel()
	text, err := write(ctx, h, doing, func(lv *libvirt.Libvirt) (string, error) {
		out, err := lv.QEMUDomainAgentCommand(dom, command, int32(agentTimeout/time.Second)-5, 0)
		if err != nil || len(out) == 0 {
			return "", err
		}
		return out[0], nil
	})
	if err != nil {
		if errors.Is(context.Cause(ctx), errAgentSilent) {
			return h.fault(doing, fmt.Errorf("the guest agent: %w", errAgentSilent))
		}
		return err
	}
	if err := parseAgentAnswer(text, answer); err != nil {
		return h.unreadable(doing, err)
	}
	return nil
}

// agentCommand writes a command of the agent's protocol.
func agentCommand(name string, arguments map[string]any) (string, error) {
	text, err := json.Marshal(map[string]any{"execute": name, "arguments": arguments})
	if err != nil {
		return "", fmt.Errorf("encoding the agent's command %s: %w", name, err)
	}
	return string(text), nil
}

// parseAgentAnswer reads what an agent answered: {"return": ...}. The guest is
// not trusted: any text may come.
func parseAgentAnswer(text string, into any) error {
	var answer struct {
		Return json.RawMessage `json:"return"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return fmt.Errorf("reading the guest agent's answer: %w", err)
	}
	if len(answer.Return) == 0 {
		return errors.New("reading the guest agent's answer: it has no return value")
	}
	if err := json.Unmarshal(answer.Return, into); err != nil {
		return fmt.Errorf("reading the guest agent's answer: %w", err)
	}
	return nil
}
