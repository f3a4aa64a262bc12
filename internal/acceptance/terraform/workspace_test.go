package terraform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"
)

// workspace is a directory with a configuration and a state.
type workspace struct {
	t   *testing.T
	dir string
	// logs is where every run of the CLI and the provider writes its trace.
	logs string
	env  []string
}

func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	dir := t.TempDir()
	w := &workspace{t: t, dir: dir, logs: filepath.Join(dir, "trace.log")}
	rc := filepath.Join(dir, "cli.tfrc")
	w.write("cli.tfrc", `provider_installation {
  dev_overrides { "egressproxy/egressproxy" = "`+os.Getenv(providerVariable)+`" }
  direct {}
}
`)
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "TF_") {
			w.env = append(w.env, entry)
		}
	}
	w.env = append(w.env, "TF_CLI_CONFIG_FILE="+rc, "TF_IN_AUTOMATION=1", "TF_INPUT=0", "CHECKPOINT_DISABLE=1", "TF_LOG=TRACE", "TF_LOG_PATH="+w.logs)
	return w
}

func (w *workspace) write(name, content string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workspace) read(name string) string {
	w.t.Helper()
	content, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(content)
}

// render writes main.tf from a template.
func (w *workspace) render(text string, values any) {
	w.t.Helper()
	var out bytes.Buffer
	if err := template.Must(template.New("main.tf").Option("missingkey=error").Parse(text)).Execute(&out, values); err != nil {
		w.t.Fatal(err)
	}
	w.write("main.tf", out.String())
}

// result is how a run of the CLI ended.
type result struct {
	out  string // standard output and error
	code int
}

// command gives a run of the CLI that ends with the test.
func (w *workspace) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Minute)
	w.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, cli, args...)
	cmd.Dir, cmd.Env = w.dir, w.env
	return cmd
}

// run runs the CLI to its end.
func (w *workspace) run(args ...string) result {
	w.t.Helper()
	cmd := w.command(args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return result{string(out), cmd.ProcessState.ExitCode()}
}

// must runs the CLI and wants it to succeed.
func (w *workspace) must(args ...string) string {
	w.t.Helper()
	r := w.run(args...)
	if r.code != 0 {
		w.t.Fatalf("%s ended with code %d:\n%s", strings.Join(args, " "), r.code, r.out)
	}
	return r.out
}

// apply applies without asking.
func (w *workspace) apply(args ...string) result {
	w.t.Helper()
	return w.run(append([]string{"apply", "-auto-approve", "-no-color"}, args...)...)
}

func (w *workspace) mustApply() {
	w.t.Helper()
	if r := w.apply(); r.code != 0 {
		w.t.Fatalf("apply ended with code %d:\n%s", r.code, r.out)
	}
}

// mustPlanNothing wants an empty plan.
func (w *workspace) mustPlanNothing(after string) {
	w.t.Helper()
	if r := w.run("plan", "-detailed-exitcode", "-no-color"); r.code != 0 {
		w.t.Fatalf("after %s the plan is not empty (code %d):\n%s", after, r.code, r.out)
	}
}

// plan is the part of a plan's JSON form that tests look at.
type plan struct {
	Changes []struct {
		Address string
		Change  struct {
			Actions      []string
			Before       map[string]any
			After        map[string]any
			AfterUnknown map[string]any `json:"after_unknown"`
		}
	} `json:"resource_changes"`
}

// plan makes a plan and returns it, with its JSON text.
func (w *workspace) plan(args ...string) (plan, string) {
	w.t.Helper()
	w.must(append([]string{"plan", "-no-color", "-out=plan.bin"}, args...)...)
	cmd := w.command("show", "-json", "plan.bin")
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("show: %v", err)
	}
	var p plan
	if err := json.Unmarshal(lastLine(out), &p); err != nil {
		w.t.Fatalf("reading the plan: %v", err)
	}
	return p, string(out)
}

// actions gives what the plan does with a resource, as in "delete,create".
func (p plan) actions(address string) string {
	for _, c := range p.Changes {
		if c.Address == address {
			return strings.Join(c.Change.Actions, ",")
		}
	}
	return "absent"
}

// instance gives the attributes of egressproxy_instance.ci in the state, nil
// when it is not there, and whether it is tainted.
func (w *workspace) instance() (attributes map[string]any, tainted bool) {
	w.t.Helper()
	var state struct {
		Resources []struct {
			Type      string
			Instances []struct {
				Status     string
				Attributes map[string]any
			}
		}
	}
	content, err := os.ReadFile(filepath.Join(w.dir, "terraform.tfstate"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, false
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal(content, &state); err != nil {
		w.t.Fatal(err)
	}
	for _, r := range state.Resources {
		if r.Type == "egressproxy_instance" && len(r.Instances) == 1 {
			return r.Instances[0].Attributes, r.Instances[0].Status == "tainted"
		}
	}
	return nil, false
}

// lastLine skips warnings that a CLI prints before its JSON.
func lastLine(out []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return lines[len(lines)-1]
}

// secretsIn names the files below the workspace, and of texts, that hold one of
// secrets.
func (w *workspace) secretsIn(secrets []string, texts map[string]string) []string {
	w.t.Helper()
	all := map[string]string{}
	for name, text := range texts {
		all[name] = text
	}
	for _, name := range []string{"terraform.tfstate", "terraform.tfstate.backup", "plan.bin", "trace.log"} {
		if content, err := os.ReadFile(filepath.Join(w.dir, name)); err == nil {
			all[name] = string(content)
		}
	}
	var found []string
	for name, text := range all {
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				found = append(found, name+" holds "+secret)
			}
		}
	}
	slices.Sort(found)
	return found
}
