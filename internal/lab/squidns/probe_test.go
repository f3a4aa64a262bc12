package squidns

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/probe"
)

func probing(s *Squid, who Credentials, target string) probe.Probe {
	return probe.Probe{
		Proxy: s.Addr, User: who.User, Password: egress.NewSecret(who.Password),
		Target: target, StepTimeout: requestTimeout,
	}
}

func TestProbeAcceptsTheRenderedSquid(t *testing.T) {
	internet(t)
	s := squid(t, denyByDefault())
	for _, target := range []string{"www.allowed.test:443", "www.allowed.test:80", "own.ci.test:443"} {
		err := probing(s, ci, target).Run(t.Context())
		hold(t, err == nil, "probing %s: %v", target, err)
		err = probing(s, ci, target).RunWithoutCredentials(t.Context())
		hold(t, err == nil, "probing %s without credentials: %v", target, err)
	}
	err := probing(s, Credentials{}, "").RunWithoutCredentials(t.Context())
	hold(t, err == nil, "probing without credentials and target: %v", err)
}

func TestProbeSaysWhichStepTheRenderedSquidFails(t *testing.T) {
	in := internet(t)
	in.Names["unreachable.allowed.test"] = nil
	s := squid(t, denyByDefault())
	for name, c := range map[string]struct {
		who    Credentials
		target string
	}{
		"wrong password":    {Credentials{"ci", "wrong"}, "www.allowed.test:443"},
		"unlisted target":   {ci, "other.test:443"},
		"forbidden port":    {ci, "www.allowed.test:22"},
		"unknown name":      {ci, "unreachable.allowed.test:443"},
		"another's domain":  {dev, "own.ci.test:443"},
		"private address":   {ci, "rebind0.allowed.test:443"},
		"metadata's target": {ci, "169.254.169.254:80"},
	} {
		err := probing(s, c.who, c.target).Run(t.Context())
		var failure *probe.Failure
		step := probe.StepForwards
		if name == "metadata's target" {
			step = probe.StepRefusesAnonymous
		}
		hold(t, errors.As(err, &failure) && failure.Step == step && !failure.Final, "%s: %v", name, err)
	}
}

func TestProbeOfAnOpenSquidFailsForGood(t *testing.T) {
	internet(t)
	s := openSquid(t)
	for name, run := range map[string]func(context.Context) error{
		"with credentials":    probing(s, ci, "www.allowed.test:443").Run,
		"without credentials": probing(s, ci, "www.allowed.test:443").RunWithoutCredentials,
	} {
		var failure *probe.Failure
		err := run(t.Context())
		hold(t, errors.As(err, &failure) && failure.Step == probe.StepRefusesAnonymous && failure.Final, "%s: %v", name, err)
	}
}

func TestProbeOfAStoppedSquidCannotConnect(t *testing.T) {
	internet(t)
	s := squid(t, denyByDefault())
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	var failure *probe.Failure
	p := probing(s, ci, "www.allowed.test:443")
	p.StepTimeout = time.Second
	err := p.Run(t.Context())
	hold(t, errors.As(err, &failure) && failure.Step == probe.StepConnect && !failure.Final, "%v", err)
}
