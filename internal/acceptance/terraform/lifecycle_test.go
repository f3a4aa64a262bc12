package terraform

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

const (
	clientPassword = `p@ss:w0rd "with" $pecials`
	userDataSecret = "only-for-the-guest-2f6e9d"
)

// realInstance is a proxy on a real guest.
const realInstance = `
terraform {
  required_providers { egressproxy = { source = "egressproxy/egressproxy" } }
}
variable "client_password" {
  type      = string
  ephemeral = true
}
variable "user_data" {
  type      = string
  ephemeral = true
}
provider "egressproxy" {
  kvm = {
    hosts         = { lab = { uri = {{ printf "%q" .URI }} } }
    machine_types = { small = { vcpus = 2, memory_mib = 512, disk_gib = 4 } }
    images        = { debian12 = { source = {{ printf "%q" .Image }}, sha256 = {{ printf "%q" .SHA256 }} } }
  }
  default_tags = { suite = "acceptance" }
}
resource "egressproxy_instance" "ci" {
  name = {{ printf "%q" .Name }}
  kvm  = { host = "lab", machine_type = "small", image = "debian12", pool = "egressproxy", network = "egressproxy", virt_type = {{ printf "%q" .VirtType }} }
  proxy = {
    clients = { ci = { password_wo = var.client_password, password_wo_version = 1 } }
    policy  = { allow_domains = ["www.allowed.test", "rebind.allowed.test"] }
  }
  health_check         = { target = "www.allowed.test:443" }
  user_data_wo         = var.user_data
  user_data_wo_version = 1
  tags                 = { env = "test" }
}
output "http_url" { value = egressproxy_instance.ci.http_url }
`

func TestProxyFromApplyToDestroy(t *testing.T) {
	instance := tiny{Name: "lifecycle", URI: hv.URI, Image: os.Getenv(imageVariable), SHA256: os.Getenv(checksumVariable), VirtType: hv.VirtType}
	w := newWorkspace(t)
	variables := []string{
		"TF_VAR_client_password=" + clientPassword,
		"TF_VAR_user_data=#cloud-config\nwrite_files:\n  - path: /etc/acceptance\n    content: " + userDataSecret + "\n",
	}
	w.env = append(w.env, variables...)
	w.render(realInstance, instance)
	texts := map[string]string{}

	_, texts["plan for the creation"] = w.plan()
	r := w.apply()
	if r.code != 0 {
		t.Fatalf("apply ended with code %d:\n%s", r.code, r.out)
	}
	texts["output of apply"] = r.out
	w.mustPlanNothing("apply")

	t.Run("forwards for a client that authenticates and for nobody else", func(t *testing.T) {
		checkProxy(t, w.proxyURL())
	})
	t.Run("the guest has got both its own user-data and ours", func(t *testing.T) {
		if got := guestFile(t, instance.Name, "/etc/acceptance"); !strings.Contains(got, userDataSecret) {
			t.Errorf("/etc/acceptance holds %q", got)
		}
	})
	t.Run("an import plans empty", func(t *testing.T) {
		other := newWorkspace(t)
		other.env = append(other.env, variables...)
		other.render(realInstance, instance)
		other.must("import", "-no-color", "egressproxy_instance.ci", "kvm://lab/"+instance.Name)
		other.mustPlanNothing("import")
	})
	t.Run("a machine that was stopped is started again", func(t *testing.T) {
		virsh(t, "destroy", instance.Name)
		p, text := w.plan()
		texts["plan for the start"] = text
		if got := p.actions("egressproxy_instance.ci"); got != "update" {
			t.Fatalf("the plan does %s", got)
		}
		change := p.Changes[0].Change
		if change.Before["state"] != "stopped" || change.After["state"] != "running" {
			t.Errorf("the plan changes state from %v to %v", change.Before["state"], change.After["state"])
		}
		w.mustApply()
		checkProxy(t, w.proxyURL())
		w.mustPlanNothing("the start")
	})
	t.Run("a machine that is gone is made again", func(t *testing.T) {
		virsh(t, "destroy", instance.Name)
		virsh(t, "undefine", instance.Name)
		p, _ := w.plan()
		if got := p.actions("egressproxy_instance.ci"); got != "create" {
			t.Fatalf("the plan does %s", got)
		}
		w.mustApply()
		checkProxy(t, w.proxyURL())
		w.mustPlanNothing("the creation")
	})
	w.must("destroy", "-auto-approve", "-no-color")
	checkNothingLeft(t, instance.Name)

	secrets := []string{clientPassword, base64.StdEncoding.EncodeToString([]byte("ci:" + clientPassword)), url.QueryEscape(clientPassword), `p@ss:w0rd \"with\" $pecials`, userDataSecret}
	if found := w.secretsIn(secrets, texts); len(found) != 0 {
		t.Errorf("secrets leaked: %q", found)
	}
	if !strings.Contains(w.read("trace.log"), "egressproxy") {
		t.Error("the trace holds nothing of the provider: this test proves nothing")
	}
}

func (w *workspace) proxyURL() string {
	w.t.Helper()
	var out string
	if err := json.Unmarshal([]byte(w.must("output", "-json", "http_url")), &out); err != nil {
		w.t.Fatal(err)
	}
	return out
}

// checkProxy asks the proxy as clients do.
func checkProxy(t *testing.T, address string) {
	t.Helper()
	for _, test := range []struct {
		method, target, user, password string
		want                           int
	}{
		{"CONNECT", "www.allowed.test:443", "ci", clientPassword, 200},
		{"CONNECT", "www.allowed.test:80", "ci", clientPassword, 200},
		{"GET", "http://www.allowed.test/", "ci", clientPassword, 200},
		{"CONNECT", "www.allowed.test:443", "", "", 407},
		{"CONNECT", "www.allowed.test:443", "ci", "wrong", 407},
		{"CONNECT", "other.test:443", "ci", clientPassword, 403},
		{"GET", "http://other.test/", "ci", clientPassword, 403},
		{"CONNECT", "169.254.169.254:80", "ci", clientPassword, 403},
		{"GET", "http://169.254.169.254/latest/meta-data/", "ci", clientPassword, 403},
		{"CONNECT", "rebind.allowed.test:80", "ci", clientPassword, 403},
		{"CONNECT", "www.allowed.test:22", "ci", clientPassword, 403},
	} {
		got, err := request(address, test.method, test.target, test.user, test.password)
		if err != nil || got != test.want {
			t.Errorf("%s %s as %q: got %d, %v; want %d", test.method, test.target, test.user, got, err, test.want)
		}
	}
}

// request sends one request to a proxy and gives the status of its answer.
func request(address, method, target, user, password string) (int, error) {
	proxy, err := url.Parse(address)
	if err != nil {
		return 0, err
	}
	conn, err := net.DialTimeout("tcp", proxy.Host, 10*time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return 0, err
	}
	host := target
	if u, err := url.Parse(target); err == nil && u.Host != "" {
		host = u.Host
	}
	header := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n", method, target, host)
	if user != "" {
		header += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)) + "\r\n"
	}
	if _, err := conn.Write([]byte(header + "\r\n")); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// guestFile reads a file in a guest, through its agent.
func guestFile(t *testing.T, domain, path string) string {
	t.Helper()
	agent := func(command string) json.RawMessage {
		var answer struct{ Return json.RawMessage }
		if err := json.Unmarshal([]byte(virsh(t, "qemu-agent-command", domain, command)), &answer); err != nil {
			t.Fatal(err)
		}
		return answer.Return
	}
	handle := agent(fmt.Sprintf(`{"execute":"guest-file-open","arguments":{"path":%q,"mode":"r"}}`, path))
	var content struct {
		Text []byte `json:"buf-b64"`
	}
	if err := json.Unmarshal(agent(fmt.Sprintf(`{"execute":"guest-file-read","arguments":{"handle":%s}}`, handle)), &content); err != nil {
		t.Fatal(err)
	}
	return string(content.Text)
}
