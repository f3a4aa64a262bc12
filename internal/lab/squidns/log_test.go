package squidns

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// entry is a line of the access log.
type entry struct {
	Time     time.Time `json:"time"`
	Client   string    `json:"client"`
	User     string    `json:"user"`
	Method   string    `json:"method"`
	Host     string    `json:"host"`
	Port     string    `json:"port"`
	Address  string    `json:"address"`
	Result   string    `json:"result"`
	Status   int       `json:"status"`
	Sent     int64     `json:"sent_bytes"`
	Received int64     `json:"received_bytes"`
	Duration int64     `json:"duration_ms"`
}

func TestAccessLogIsOneJSONObjectARequestWithoutSecrets(t *testing.T) {
	internet(t)
	s := squid(t, denyByDefault())
	try(t, s, ci, "www.allowed.test", 443, arrives)
	try(t, s, ci, "other.test", 443, refused)
	try(t, s, Credentials{"ci", "a-wrong-secret"}, "www.allowed.test", 443, unauthorized)
	get(t, s, Credentials{"in\"jected\\", "x"}, "http://www.allowed.test/", unauthorized)
	get(t, s, ci, "http://www.allowed.test/path-secret?token=query-secret", arrives)
	get(t, s, ci, "http://log\"ged\\.other.test/", nothing)
	text := logOf(t, 7)
	for _, secret := range []string{"path-secret", "query-secret", "a-wrong-secret", ci.Password, "p%41ss"} {
		hold(t, !strings.Contains(text, secret), "the log holds %q", secret)
	}
	var last entry
	found := false
	for line := range strings.Lines(text) {
		var e entry
		err := json.Unmarshal([]byte(line), &e)
		hold(t, err == nil, "the log's line %s is not JSON: %v", line, err)
		if e.Method == "CONNECT" && e.Status == 200 {
			last, found = e, true
		}
	}
	if !found {
		t.Fatalf("the log has no successful CONNECT:\n%s", text)
	}
	if last.User != "ci" || last.Host != "www.allowed.test" || last.Port != "443" || last.Address != public || last.Client != "127.0.0.1" || time.Since(last.Time) > time.Hour {
		t.Errorf("the successful CONNECT is logged as %+v", last)
	}
}

// logOf waits until the access log has some number of lines: Squid writes one
// when a connection has ended, shortly after the client saw it end.
func logOf(t *testing.T, lines int) string {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(10 * time.Second)
	for {
		text, err := os.ReadFile(AccessLog)
		if err == nil && strings.Count(string(text), "\n") >= lines {
			return string(text)
		}
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatalf("the access log has fewer than %d lines (%v):\n%s", lines, err, text)
		}
	}
}

func TestFilesAreReadableByRootAndSquidAlone(t *testing.T) {
	internet(t)
	squid(t, denyByDefault())
	for _, path := range []string{"/etc/squid/squid.conf", "/etc/squid/egressproxy-users"} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o640 {
			t.Errorf("%s has mode %o, want 640", path, info.Mode().Perm())
		}
	}
}
