package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// checksumsLimit is how long a list of checksums may be, in bytes: that of a
// distribution's whole archive of images has some tens of KiB.
const checksumsLimit = 1 << 20

// FetchChecksum reads the checksum of the image at s.Location from the list of
// checksums at listURL, and gives it in lower-case hexadecimal. The list is as
// sha256sum writes it, with or without its --tag, or a lone checksum; the entry
// is that with the file name of s.Location. s.SHA256 is not used.
//
// Errors are *egress.Fault, as those of Open; a list that does not tell is
// ErrPermanent.
func (s Source) FetchChecksum(ctx context.Context, listURL string) (string, error) {
	at, err := parseLocation(listURL)
	if err == nil && at.url == nil {
		err = errors.New("it is not an https:// or http:// URL")
	}
	const remedy = "Give the checksum itself as sha256 in the provider's images, or the URL of a list of SHA-256 checksums that has the image."
	if err != nil {
		return "", permanent("reading the checksum of an image", err, remedy)
	}
	doing := "reading the list of checksums " + at.String()
	name, err := fileName(s.Location)
	if err != nil {
		return "", permanent(doing, err, remedy)
	}
	list, _, err := s.openURL(ctx, at.url, doing)
	if err != nil {
		return "", err
	}
	defer list.Close()
	text, err := io.ReadAll(io.LimitReader(list, checksumsLimit+1))
	if err != nil {
		return "", err
	}
	if len(text) > checksumsLimit {
		return "", permanent(doing, fmt.Errorf("it is longer than %d bytes", checksumsLimit), remedy)
	}
	sum, err := findChecksum(string(text), name)
	if err != nil {
		return "", permanent(doing, err, remedy)
	}
	return sum, nil
}

// ParseChecksumURL tells whether s can be the URL of a list of checksums.
func ParseChecksumURL(s string) error {
	at, err := parseLocation(s)
	if err == nil && at.url == nil {
		err = fmt.Errorf("%s is not an https:// or http:// URL", at)
	}
	return err
}

// fileName is the last part of an image's place.
func fileName(image string) (string, error) {
	at, err := parseLocation(image)
	if err != nil {
		return "", err
	}
	name := path.Base(strings.ReplaceAll(at.path, `\`, "/"))
	if at.url != nil {
		name = path.Base(at.url.Path)
	}
	if name == "" || name == "." || name == "/" {
		return "", fmt.Errorf("image source %s has no file name to look up", at)
	}
	return name, nil
}

// The forms of a line, as coreutils' sha256sum writes them (its manual, section
// "cksum output modes"): a checksum and a name; with --tag, the reverse.
var (
	plainLine  = regexp.MustCompile(`^\\?([0-9A-Fa-f]{64})(?:\s+\*?(.+))?$`)
	taggedLine = regexp.MustCompile(`^SHA256 ?\((.+)\) ?= ?([0-9A-Fa-f]{64})$`)
)

// findChecksum finds the checksum of the file called name in a list. Lines that
// are neither form, as those of a signature around the list, are passed over.
func findChecksum(list, name string) (string, error) {
	var found, others, lone []string
	lines := bufio.NewScanner(strings.NewReader(list))
	lines.Buffer(nil, checksumsLimit+1)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		sum, of := "", ""
		if m := plainLine.FindStringSubmatch(line); m != nil {
			sum, of = m[1], m[2]
		} else if m := taggedLine.FindStringSubmatch(line); m != nil {
			sum, of = m[2], m[1]
		}
		switch sum = strings.ToLower(sum); {
		case sum == "":
		case of == "":
			lone = append(lone, sum)
		case sameFile(of, name):
			found = append(found, sum)
		default:
			others = append(others, path.Base(of))
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	if len(found) == 0 && len(others) == 0 {
		found = lone
	}
	slices.Sort(found)
	switch found = slices.Compact(found); {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fmt.Errorf("it has %d different SHA-256 checksums for %s", len(found), name)
	case len(others) > 0:
		const shown = 5
		more := ""
		if len(others) > shown {
			more = fmt.Sprintf(" and %d more", len(others)-shown)
		}
		return "", fmt.Errorf("it has no SHA-256 checksum for %s, only for %q%s", name, others[:min(shown, len(others))], more)
	}
	return "", errors.New("it has no SHA-256 checksum")
}

// sameFile tells whether a list means the file called name. Lists may have it
// with its directory, and escaped as in a URL.
func sameFile(listed, name string) bool {
	base := path.Base(listed)
	if base == name {
		return true
	}
	unescaped, err := url.PathUnescape(base)
	return err == nil && unescaped == name
}
