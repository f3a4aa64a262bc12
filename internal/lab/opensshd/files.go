package opensshd

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// writeFiles writes what the server reads.
func writeFiles(options Options) error {
	in := func(name string) string { return filepath.Join(options.Dir, name) }
	config := slices.Clone(options.Lines)
	config = append(config, "ListenAddress "+options.Address)
	for i, key := range options.HostKeys {
		text, err := key.PEM()
		if err != nil {
			return err
		}
		file := in("host_key_" + strconv.Itoa(i))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		config = append(config, "HostKey "+file)
	}
	config = append(config,
		"AuthorizedKeysFile "+in("authorized_keys"),
		// the directory's parents need not be root's alone
		"StrictModes no",
		"PermitRootLogin yes",
		"PasswordAuthentication no",
		"KbdInteractiveAuthentication no",
		"UsePAM no",
		"PidFile none",
		"LogLevel VERBOSE",
		// tests start many logins at once, and fail many
		"MaxStartups 100",
	)
	if penalises() {
		config = append(config, "PerSourcePenalties no")
	}
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n")
	for _, name := range slices.Sorted(maps.Keys(options.Hosts)) {
		fmt.Fprintf(&hosts, "%s %s\n", options.Hosts[name], name)
	}
	for name, text := range map[string]string{
		"sshd_config":     strings.Join(config, "\n") + "\n",
		"authorized_keys": strings.Join(options.AuthorizedKeys, "\n") + "\n",
		"hosts":           hosts.String(),
		// without PAM, sshd takes root for locked where the password is "!"
		"shadow": "root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n",
	} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return os.Chmod(in("hosts"), 0o644) // sshd looks names up without privileges
}

var versionPattern = regexp.MustCompile(`OpenSSH_(\d+)\.(\d+)`)

// penalises tells whether the installed server keeps addresses out that failed
// to log in, which it does since 9.8; older ones do not know the option.
func penalises() bool {
	path, err := exec.LookPath("sshd")
	if err != nil {
		path = "/usr/sbin/sshd"
	}
	said, _ := exec.Command(path, "-V").CombinedOutput() // old ones take -V for a mistake, and say their version
	version := versionPattern.FindSubmatch(said)
	if version == nil {
		return false
	}
	major, _ := strconv.Atoi(string(version[1])) // digits
	minor, _ := strconv.Atoi(string(version[2]))
	return major > 9 || (major == 9 && minor >= 8)
}

// children gives the IDs of the processes that a process has started
// (proc_pid_stat(5): the parent is the second field after the name).
func children(parent int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		after := stat[strings.LastIndexByte(string(stat), ')')+1:]
		if fields := strings.Fields(string(after)); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			found = append(found, pid)
		}
	}
	return found
}
