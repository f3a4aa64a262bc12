package main

import (
	"os"
	"slices"
	"testing"
)

func TestOnlyBaseImagesMayStayAfterADestroy(t *testing.T) {
	got := volumesOfInstances([]string{
		"egressproxy-base-0a1b.qcow2               /pool/egressproxy-base-0a1b.qcow2",
		"egressproxy-base-0a1b.complete            /pool/egressproxy-base-0a1b.complete",
		"egressproxy-quickstart-egress-1-root.qcow2   /pool/egressproxy-quickstart-egress-1-root.qcow2",
		"egressproxy-quickstart-egress-1-seed.iso     /pool/egressproxy-quickstart-egress-1-seed.iso",
	})
	want := []string{"egressproxy-quickstart-egress-1-root.qcow2", "egressproxy-quickstart-egress-1-seed.iso"}
	if !slices.Equal(got, want) {
		t.Errorf("left behind: %q, want %q", got, want)
	}
}

func TestDownLeavesADirectoryThatIsNoLab(t *testing.T) {
	l := lab{dir: t.TempDir()}
	if err := l.down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.running(); err == nil {
		t.Error("a directory without lab.json counts as a running lab")
	}
	if !isDir(l.dir) {
		t.Error("the directory is gone")
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
