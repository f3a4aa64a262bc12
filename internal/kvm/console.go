package kvm

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"sync"

	"github.com/digitalocean/go-libvirt"
)

const (
	// consoleLines is how many of a console's last lines an error shows.
	consoleLines = 20
	// consoleLineLength bounds a line, in bytes, against a guest that never
	// ends one.
	consoleLineLength = 512
)

// console keeps the last lines of a guest's serial console. Its Write never
// fails: go-libvirt deadlocks the whole connection when the writer of an
// incoming stream does.
type console struct {
	mutex   sync.Mutex
	lines   []string
	partial []byte
	// panicked is called, once, with the line in which the guest's kernel
	// says that it gave up.
	panicked func(line string)
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, piece := range bytes.SplitAfter(p, []byte("\n")) {
		c.partial = append(c.partial, piece...)
		if bytes.HasSuffix(piece, []byte("\n")) || len(c.partial) >= consoleLineLength {
			c.endLine()
		}
	}
	return len(p), nil
}

func (c *console) endLine() {
	line := plainText(c.partial)
	c.partial = c.partial[:0]
	if line == "" {
		return
	}
	c.lines = append(c.lines, line)
	if len(c.lines) > consoleLines {
		c.lines = c.lines[1:]
	}
	if c.panicked != nil && strings.Contains(line, "Kernel panic - not syncing") {
		c.panicked(line)
		c.panicked = nil
	}
}

// tail gives the last lines, oldest first, the one still being written too.
func (c *console) tail() []string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	lines := append([]string(nil), c.lines...)
	if line := plainText(c.partial); line != "" {
		lines = append(lines, line)
	}
	return lines
}

// terminalCodes are the ANSI escape sequences (ECMA-48, section 5.4) and the
// control characters that boot loaders and systemd write to a console.
var terminalCodes = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]`)

func plainText(line []byte) string {
	return strings.TrimSpace(strings.ToValidUTF8(terminalCodes.ReplaceAllString(string(line), ""), "?"))
}

// followConsole copies a domain's serial console into c until ctx ends or the
// machine does, and closes the returned channel then. It connects at once but
// opens the console only when started is closed, to miss as little as possible
// of what the guest says first. A console that cannot be had, because a person
// uses it, is no failure: then there is nothing to show.
func (h *host) followConsole(ctx context.Context, dom libvirt.Domain, c *console, started <-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.pool.Stream(ctx, "reading the console of domain "+dom.Name, func(lv *libvirt.Libvirt) error {
			select {
			case <-started:
			case <-ctx.Done():
				return ctx.Err()
			}
			return lv.DomainOpenConsole(dom, nil, c, 0)
		})
	}()
	return done
}
