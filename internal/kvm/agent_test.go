package kvm

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestAgentAnswersAreReadAndOthersRefused(t *testing.T) {
	var status execStatus
	if err := parseAgentAnswer(`{"return":{"exited":true,"exitcode":3,"out-data":"Z3Jvd24K","err-data":"d2Fybg=="}}`, &status); err != nil {
		t.Fatal(err)
	}
	if !status.Exited || status.ExitCode != 3 || string(status.Out) != "grown\n" || string(status.Err) != "warn" {
		t.Errorf("read as %+v", status)
	}
	for name, text := range map[string]string{
		"nothing":       "",
		"no JSON":       "guest says hello",
		"an error":      `{"error":{"class":"CommandNotFound","desc":"guest-exec has been disabled"}}`,
		"no return":     `{}`,
		"another type":  `{"return":[1,2]}`,
		"broken base64": `{"return":{"exited":true,"out-data":"%%%"}}`,
		"half of one":   `{"return":{"exited":tr`,
		"two answers":   `{"return":{}}{"return":{}}`,
	} {
		if err := parseAgentAnswer(text, new(execStatus)); err == nil || !strings.Contains(err.Error(), "guest agent's answer") {
			t.Errorf("%s: got %v, want an error that names the guest agent", name, err)
		}
	}
}

func TestAgentCommandsCarryAnyArgument(t *testing.T) {
	path := `/bin/"sh" \ ü`
	text, err := agentCommand("guest-exec", map[string]any{"path": path, "arg": []string{"-c", "a\nb"}})
	if err != nil {
		t.Fatal(err)
	}
	var command struct {
		Execute   string
		Arguments struct {
			Path string
			Arg  []string
		}
	}
	if err := json.Unmarshal([]byte(text), &command); err != nil {
		t.Fatal(err)
	}
	if command.Execute != "guest-exec" || command.Arguments.Path != path || len(command.Arguments.Arg) != 2 || command.Arguments.Arg[1] != "a\nb" {
		t.Errorf("%s is read as %+v", text, command)
	}
}

// A guest is not trusted: its agent may answer anything.
func FuzzAgentAnswersAreReadOrRefused(f *testing.F) {
	f.Add(`{"return":{"exited":true,"exitcode":3,"out-data":"Z3Jvd24K"}}`)
	f.Add(`{"return":{"pid":4242}}`)
	f.Add(`{"error":{"class":"GenericError","desc":""}}`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, into := range []any{new(execStatus), &struct {
			PID int `json:"pid"`
		}{}} {
			if err := parseAgentAnswer(text, into); err == nil && !json.Valid([]byte(text)) {
				t.Errorf("%q is no JSON and was read as %+v", text, into)
			}
		}
	})
}
