package kvm

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// everything is a change of all that a definition can be changed in.
func everything() domainChange {
	file, note := `/var/log/egress/"new" & <log>.log`, `a "new" <note> & more`
	return domainChange{MemoryMiB: 3072, VCPUs: 2, CPUMode: "host-model", ConsoleLog: &file, Description: &note}
}

// ownElements are those that a change may touch.
var ownElements = regexp.MustCompile(`^/domain/(memory|currentMemory|vcpu|vcpus|cpu|description|devices/serial/log|devices/console/log)( |/|=|$)`)

// leaves lists all that stands in a definition beside what a change may touch:
// elements with their attributes in order, texts, comments and instructions.
func leaves(definition string) (out []string, err error) {
	decoder := xml.NewDecoder(strings.NewReader(definition))
	var path []string
	add := func(text string) {
		if line := "/" + strings.Join(path, "/") + text; !ownElements.MatchString(line) {
			out = append(out, line)
		}
	}
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		switch token := token.(type) {
		case xml.StartElement:
			name := token.Name.Local
			if token.Name.Space != "" {
				name = "{" + token.Name.Space + "}" + name
			}
			path = append(path, name)
			add(fmt.Sprintf(" %q", token.Attr))
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			// A new element stands where there was only the white space between others.
			if text := string(token); strings.TrimSpace(text) != "" {
				add("=" + text)
			}
		case xml.Comment:
			add("#" + string(token))
		case xml.ProcInst:
			add("?" + token.Target + " " + string(token.Inst))
		case xml.Directive:
			add("!" + string(token))
		}
	}
}

// definitions are all of the test data, by file name.
func definitions(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.xml")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, file := range files {
		if name := filepath.Base(file); strings.HasPrefix(name, "domain-") || strings.HasPrefix(name, "foreign-") {
			all[name] = testdata(t, name)
		}
	}
	return all
}

func TestChangeTouchesNothingElseInADefinition(t *testing.T) {
	for name, text := range definitions(t) {
		for what, change := range map[string]domainChange{
			"everything": everything(), "memory": {MemoryMiB: 3072}, "CPUs": {VCPUs: 2}, "CPU mode": {CPUMode: "maximum"}, "log": {ConsoleLog: everything().ConsoleLog},
			"no log": {ConsoleLog: new(string)}, "note": {Description: everything().Description}, "no note": {Description: new(string)},
		} {
			got, err := editDomain(text, change)
			if err != nil {
				t.Errorf("%s, %s: %v", name, what, err)
				continue
			}
			before, err := leaves(text)
			if err != nil {
				t.Fatal(err)
			}
			after, err := leaves(got)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("%s, %s (-before +after):\n%s", name, what, diff)
			}
			// What is read of it is what it was, with the change.
			was, is := parseDomain(t, text), parseDomain(t, got)
			want := readMachine(was, nil)
			if change.MemoryMiB != 0 {
				want.MemoryMiB = change.MemoryMiB
			}
			if change.VCPUs != 0 {
				want.VCPUs = change.VCPUs
			}
			if change.CPUMode != "" {
				want.CPUMode = change.CPUMode
			}
			if change.ConsoleLog != nil {
				want.ConsoleLog = *change.ConsoleLog
			}
			if diff := cmp.Diff(want, readMachine(is, nil), byValue); diff != "" {
				t.Errorf("%s, %s is read as another machine (-want +got):\n%s", name, what, diff)
			}
			note := readDescription(was)
			if change.Description != nil {
				note = *change.Description
			}
			if readDescription(is) != note {
				t.Errorf("%s, %s: the note is %q, want %q", name, what, readDescription(is), note)
			}
			if again, err := editDomain(got, change); err != nil || again != got {
				t.Errorf("%s, %s: the same change once more changes it again: %v\n%s", name, what, err, cmp.Diff(got, again))
			}
		}
	}
}

func TestForeignDefinitionIsChangedAsAPersonWould(t *testing.T) {
	for name, text := range definitions(t) {
		if !strings.HasPrefix(name, "foreign-") {
			continue
		}
		got, err := editDomain(text, everything())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		compareGolden(t, "edited-"+name, got)
	}
}

func TestChangeOfNothingGivesTheDefinitionAsItIs(t *testing.T) {
	for name, text := range definitions(t) {
		if got, err := editDomain(text, domainChange{}); err != nil || got != text {
			t.Errorf("%s: %v\n%s", name, err, cmp.Diff(text, got))
		}
	}
}

func TestChangeThatContradictsTheDefinitionIsRefused(t *testing.T) {
	noSerial := `<domain><devices/></domain>`
	for name, test := range map[string]struct {
		definition string
		change     domainChange
		attribute  string
		says       string
	}{
		"topology":           {`<domain><vcpu>4</vcpu><cpu><topology sockets='1' dies='1' cores='2' threads='2'/></cpu></domain>`, domainChange{VCPUs: 2}, "kvm.vcpus", "topology"},
		"NUMA cells":         {`<domain><memory>1</memory><cpu><numa><cell id='0' cpus='0' memory='1' unit='GiB'/></numa></cpu></domain>`, domainChange{MemoryMiB: 512}, "kvm.memory_mib", "NUMA"},
		"CPUs of NUMA cells": {`<domain><vcpu>4</vcpu><cpu><numa><cell id='0' cpus='0-1,3' memory='1'/></numa></cpu></domain>`, domainChange{VCPUs: 3}, "kvm.vcpus", "CPU 3"},
		"limit":              {`<domain><maxMemory slots='2' unit='GiB'>1</maxMemory><memory>1</memory></domain>`, domainChange{MemoryMiB: 1025}, "kvm.memory_mib", "1024 MiB"},
		"no console":         {noSerial, domainChange{ConsoleLog: everything().ConsoleLog}, "kvm.console_log", "serial"},
		"all together":       {noSerial, everything(), "kvm.console_log", "serial"},
	} {
		got, err := editDomain(test.definition, test.change)
		var fault *egress.Fault
		if !errors.As(err, &fault) || fault.Attribute != test.attribute || !errors.Is(err, egress.ErrPermanent) || fault.Remedy == "" || !strings.Contains(fault.Cause.Error(), test.says) || got != "" {
			t.Errorf("%s: got %q, %v; want a fault of %s that tells of %s", name, got, err, test.attribute, test.says)
		}
	}
	for name, test := range map[string]struct {
		definition string
		change     domainChange
	}{
		"topology that fits":           {`<domain><vcpu>2</vcpu><cpu><topology sockets='1' cores='2' threads='1'/></cpu></domain>`, domainChange{VCPUs: 2}},
		"topology, other change":       {`<domain><vcpu>4</vcpu><cpu><topology sockets='1' cores='4' threads='1'/></cpu></domain>`, domainChange{MemoryMiB: 512, CPUMode: "maximum"}},
		"NUMA cells, other change":     {`<domain><cpu><numa><cell id='0' cpus='0' memory='1' unit='GiB'/></numa></cpu></domain>`, domainChange{CPUMode: "maximum"}},
		"more CPUs than in NUMA cells": {`<domain><vcpu>4</vcpu><cpu><numa><cell id='0' cpus='0-3' memory='1'/></numa></cpu></domain>`, domainChange{VCPUs: 4}},
		"limit that suffices":          {`<domain><maxMemory unit='GiB'>1</maxMemory></domain>`, domainChange{MemoryMiB: 1024}},
		"no console, no log is wanted": {noSerial, domainChange{ConsoleLog: new(string)}},
	} {
		if _, err := editDomain(test.definition, test.change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatIsNoDefinitionIsNotChanged(t *testing.T) {
	for _, text := range []string{"", "domain", "<network/>", "<domain>", "<domain></domains>", "<domain/><domain/>", "<domain a='1' a='2'", "<domain>&nbsp;</domain>"} {
		if got, err := editDomain(text, domainChange{VCPUs: 2}); err == nil {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func FuzzChangeKeepsWhatItDoesNotKnow(f *testing.F) {
	for _, text := range definitions(f) {
		f.Add(text, "/var/log/x.log", "note", 512, 2)
	}
	f.Add("<?xml version='1.0'?><!DOCTYPE domain><domain><!-- c --><x:y xmlns:x='u' x:a='1'>&#x41;<![CDATA[<]]></x:y></domain>", "", "\x00", 1, 1)
	f.Fuzz(func(t *testing.T, text, log, note string, memory, cpus int) {
		got, err := editDomain(text, domainChange{MemoryMiB: memory, VCPUs: cpus, CPUMode: "maximum", ConsoleLog: &log, Description: &note})
		if err != nil {
			return
		}
		before, err := leaves(text)
		if err != nil {
			return // taken though it is not well formed: nothing to compare with
		}
		after, err := leaves(got)
		if err != nil {
			t.Fatalf("what came out is not well formed: %v\n%q\n%q", err, text, got)
		}
		if !slices.Equal(before, after) {
			t.Errorf("(-before +after):\n%s", cmp.Diff(before, after))
		}
	})
}
