package connection

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// hostKeyVerifier decides whether a server is the one that was meant: by the
// pinned key where there is one, else by the known_hosts file.
type hostKeyVerifier struct {
	hop      hop
	file     string        // the known_hosts file
	pinned   ssh.PublicKey // nil without a pinned key
	known    ssh.HostKeyCallback
	expected []ssh.PublicKey // the file's keys for this host
	byCA     bool            // the file has an authority for this host
	// byHostAlone tells that they are the host's at port 22
	byHostAlone bool

	mu   sync.Mutex
	seen ssh.PublicKey // what the server showed
	err  error         // why it was refused
}

func newHostKeyVerifier(server hop) (*hostKeyVerifier, error) {
	v := &hostKeyVerifier{hop: server}
	if server.ssh.HostKey != "" {
		var err error
		v.pinned, err = parseHostKey(server.ssh.HostKey)
		return v, err
	}
	v.file = expandHome("~/.ssh/known_hosts")
	if server.ssh.KnownHostsFile != "" {
		v.file = expandHome(server.ssh.KnownHostsFile)
	}
	var err error
	v.known, err = knownhosts.New(v.file)
	if errors.Is(err, fs.ErrNotExist) {
		// go on, to be able to say which key the server has
		v.known, err = knownhosts.New()
	}
	if err != nil {
		return nil, &egress.Fault{
			Kind:      egress.ErrPermanent,
			Cause:     fmt.Errorf("reading the known_hosts file %s: %w", v.file, reasonOf(err)),
			Remedy:    "Make the file readable, or set ssh.known_hosts_file or ssh.host_key.",
			Attribute: server.attribute + ".known_hosts_file",
		}
	}
	if err := v.findExpected(); err != nil {
		return nil, err
	}
	return v, nil
}

// findExpected asks the file for this host's keys. A file that has none for
// this port may have some for the host alone, which count as they do for
// OpenSSH's client ("checking without port identifier").
func (v *hostKeyVerifier) findExpected() error {
	want, err := v.linesFor(v.hop.address())
	if err == nil && len(want) == 0 && v.hop.port != "22" {
		want, err = v.linesFor(v.portless())
		v.byHostAlone = len(want) > 0
	}
	authorities := authorityLines(v.file)
	for _, line := range want {
		if authorities[line.Line] {
			v.byCA = true
			continue
		}
		v.expected = append(v.expected, line.Key)
	}
	return err
}

// portless gives the address by which a file knows the host at any port.
func (v *hostKeyVerifier) portless() string { return net.JoinHostPort(v.hop.host, "22") }

// linesFor asks the file for the lines of an address, by showing it a key that
// cannot be in it.
func (v *hostKeyVerifier) linesFor(address string) ([]knownhosts.KnownKey, error) {
	fresh, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	probe, err := ssh.NewPublicKey(fresh)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	var mismatch *knownhosts.KeyError
	if err := v.known(address, &net.TCPAddr{}, probe); !errors.As(err, &mismatch) {
		return nil, nil // nothing to learn: the server's key will be judged all the same
	}
	return mismatch.Want, nil
}

// algorithms gives the host key algorithms to ask the server for. A server has
// several keys and shows the one of the first algorithm that both sides know:
// asking for types that the file does not have makes a known host look like an
// impostor, and asking for certificates where no authority is known hides the
// key that could be.
func (v *hostKeyVerifier) algorithms() []string {
	keys := v.expected
	if v.pinned != nil {
		keys = []ssh.PublicKey{v.pinned}
	}
	var types []string
	for _, key := range keys {
		types = append(types, key.Type())
	}
	algorithms := hostKeyAlgorithms(types, v.byCA)
	if v.byHostAlone { // it may be another server of that host, with other keys
		for _, algorithm := range algorithmPreference {
			if !slices.Contains(algorithms, algorithm) {
				algorithms = append(algorithms, algorithm)
			}
		}
	}
	return algorithms
}

// check is the ssh.HostKeyCallback.
func (v *hostKeyVerifier) check(address string, remote net.Addr, key ssh.PublicKey) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen = key
	switch {
	case v.pinned == nil:
		v.err = v.known(address, remote, key)
		if v.err != nil && v.byHostAlone && v.known(v.portless(), remote, key) == nil {
			v.err = nil
		}
	case !bytes.Equal(v.pinned.Marshal(), key.Marshal()):
		v.err = errors.New("the server's key is not the pinned one")
	}
	return v.err
}

// fault explains a handshake that failed because of the host key, and gives
// nil when it failed for another reason.
func (v *hostKeyVerifier) fault(handshake error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	f := &egress.Fault{Kind: egress.ErrPermanent, Attribute: v.hop.attribute + ".host_key"}
	var negotiation *ssh.AlgorithmNegotiationError
	if v.err == nil {
		restricted := v.pinned != nil || (len(v.expected) > 0 || v.byCA) && !v.byHostAlone
		if !restricted || !errors.As(handshake, &negotiation) || !strings.Contains(negotiation.What, "host key") {
			return nil
		}
		f.Cause = fmt.Errorf("the server has no host key of the type that %s holds (it has %s)",
			v.source(), strings.Join(negotiation.RequestedAlgorithms, ", "))
		f.Remedy = "If the host got new keys, " + v.scanHint()
		return f
	}
	seen := v.seen.Type() + " " + ssh.FingerprintSHA256(v.seen)
	var mismatch *knownhosts.KeyError
	var revoked *knownhosts.RevokedError
	switch {
	case errors.As(v.err, &revoked):
		f.Cause = fmt.Errorf("the server showed the key %s, which %s revokes", seen, v.source())
		f.Remedy = "Do not use this host before it is clear why it has a revoked key."
	case errors.As(v.err, &mismatch) && len(mismatch.Want) == 0:
		f.Cause = fmt.Errorf("the host key is unknown: the server showed %s, and %s has no key for %s",
			seen, v.source(), v.hop.address())
		f.Remedy = fmt.Sprintf("Compare the fingerprint with the machine's own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`). If it is right, %s"+
			" Or pin it in %s: host_key = %q.", v.scanHint(), v.hop.setting, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(v.seen))))
	case v.isCertificate():
		f.Cause = fmt.Errorf("the server showed the certificate %s, which %s does not make acceptable: %s", seen, v.source(), bare(v.err))
		f.Remedy = "Have the host's certificate signed anew, for the name " + v.hop.host + " and by the authority of the file; or pin the host's plain key with host_key."
	default:
		f.Cause = fmt.Errorf("the host key has changed: the server showed %s, and %s has %s", seen, v.source(), v.wanted())
		f.Remedy = "Somebody may be between, or the host was set up anew. If the new key is right, replace the old one: " + v.scanHint()
	}
	return f
}

// isCertificate tells whether the server showed a certificate.
func (v *hostKeyVerifier) isCertificate() bool {
	_, is := v.seen.(*ssh.Certificate)
	return is
}

// source names where the expected key comes from.
func (v *hostKeyVerifier) source() string {
	if v.pinned != nil {
		return "the attribute host_key"
	}
	return v.file
}

// wanted names the expected keys.
func (v *hostKeyVerifier) wanted() string {
	keys := v.expected
	if v.pinned != nil {
		keys = []ssh.PublicKey{v.pinned}
	}
	var names []string
	for _, key := range keys {
		names = append(names, key.Type()+" "+ssh.FingerprintSHA256(key))
	}
	if len(names) == 0 {
		return "another"
	}
	return strings.Join(names, ", ")
}

func (v *hostKeyVerifier) scanHint() string {
	if v.pinned != nil {
		return "set " + v.hop.setting + ".host_key to it."
	}
	remove := ""
	if len(v.expected) > 0 && !v.byHostAlone {
		remove = fmt.Sprintf("ssh-keygen -f %s -R '%s' && ", v.file, knownhosts.Normalize(v.hop.address()))
	}
	scan := v.hop.from(fmt.Sprintf("ssh-keyscan -p %s %s", v.hop.port, v.hop.host))
	return fmt.Sprintf("run `%s%s >> %s`.", remove, scan, v.file)
}

// parseHostKey reads a pinned key, a line of a .pub file.
func parseHostKey(line string) (ssh.PublicKey, error) {
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil || len(options) > 0 || len(rest) > 0 {
		return nil, errors.New("the host key is not one public key line")
	}
	return key, nil
}

// authorityLines gives the numbers of the lines of a known_hosts file that
// name certificate authorities; the knownhosts package does not tell.
func authorityLines(file string) map[int]bool {
	lines := map[int]bool{}
	f, err := os.Open(file)
	if err != nil {
		return lines // it was read a moment ago; without it there are none
	}
	defer func() { _ = f.Close() }()
	scanner := bufio.NewScanner(f)
	for n := 1; scanner.Scan(); n++ {
		if strings.HasPrefix(strings.TrimSpace(scanner.Text()), "@cert-authority") {
			lines[n] = true
		}
	}
	return lines
}

// algorithmPreference is the order in which host keys are asked for: the
// newest kinds first, RSA never with SHA-1.
var algorithmPreference = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519,
	ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKECDSA256,
	ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
}

// certificateAlgorithms are the forms of host certificates.
var certificateAlgorithms = []string{
	ssh.CertAlgoED25519v01,
	ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01,
	ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
}

// hostKeyAlgorithms gives the algorithms for keys of these types, in order of
// preference, certificates first where an authority may have signed one. With
// neither they are those of all plain keys.
func hostKeyAlgorithms(types []string, byCA bool) []string {
	if len(types) == 0 && !byCA {
		return slices.Clone(algorithmPreference)
	}
	var algorithms []string
	if byCA {
		algorithms = append(algorithms, certificateAlgorithms...)
	}
	for _, algorithm := range algorithmPreference {
		of := algorithm
		if algorithm == ssh.KeyAlgoRSASHA512 || algorithm == ssh.KeyAlgoRSASHA256 {
			of = ssh.KeyAlgoRSA
		}
		if slices.Contains(types, of) {
			algorithms = append(algorithms, algorithm)
		}
	}
	return algorithms
}
