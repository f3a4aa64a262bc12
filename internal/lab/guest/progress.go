package guest

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// steps is how many steps a build has.
const steps = 6

// stillEvery is the time between two lines about the same step.
const stillEvery = 15 * time.Second

// progress tells a person how far a build is.
type progress struct {
	log   io.Writer
	start time.Time
	count int
	what  string
}

func newProgress(log io.Writer) *progress { return &progress{log: log, start: time.Now()} }

// step says that the next step begins.
func (p *progress) step(what string) {
	p.count++
	p.what = what
	p.print()
}

func (p *progress) print() {
	seconds := int(time.Since(p.start).Seconds())
	// A log that cannot be written is no reason to fail a build.
	_, _ = fmt.Fprintf(p.log, "building the guest image, step %d of %d: %s (%d s)\n", p.count, steps, p.what, seconds)
}

// follow reads what a program prints until it ends and returns it. Lines of
// the form "step: WHAT", and mmdebstrap's word that all is downloaded, begin
// the next step; a step that goes on is mentioned again now and then.
func (p *progress) follow(lines <-chan string) (said []string) {
	tick := time.NewTicker(stillEvery)
	defer tick.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return said
			}
			if what, ok := strings.CutPrefix(line, "step: "); ok {
				p.step(what)
				tick.Reset(stillEvery)
				continue
			}
			if line == "I: extracting archives..." {
				p.step("installing them")
				tick.Reset(stillEvery)
			}
			said = append(said, line)
		case <-tick.C:
			p.print()
		}
	}
}
