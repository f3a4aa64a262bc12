package origin

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/namespace"
)

func TestMain(m *testing.M) { os.Exit(namespace.Run(m.Run)) }

func start(t *testing.T) *Origin {
	t.Helper()
	o, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func get(t *testing.T, client *http.Client, url, host string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestEveryAddressEchoesTheHostAndCountsItsRequests(t *testing.T) {
	o := start(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, addr := range []netip.Addr{Allowed, Other, Metadata, Private} {
		t.Run(addr.String(), func(t *testing.T) {
			if got := get(t, client, "http://"+addr.String()+"/", "name.test"); !strings.HasPrefix(got, "name.test ") {
				t.Errorf("answer %q, want it to begin with the request's host", got)
			}
			if got := o.Requests(addr); got != 1 {
				t.Errorf("%d requests counted, want 1", got)
			}
		})
	}
}

func TestTLSNamesAreCoveredByTheCertificate(t *testing.T) {
	o := start(t)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(o.Certificate) {
		t.Fatal("the certificate is not PEM")
	}
	for _, name := range []string{"www.allowed.test", "other.test"} {
		addr := net.JoinHostPort(Hosts[name].String(), "443")
		conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: name}}).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = conn.Close()
	}
}

func TestStartAgainAfterClose(t *testing.T) {
	o, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	start(t)
}
