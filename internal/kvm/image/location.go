package image

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
)

// ParseLocation tells whether s can be where an image comes from, without
// looking there: an https:// or http:// URL, a file:// URL, or the path of a
// local file, absolute or relative to the working directory. The error says
// what is wrong, without repeating user information or a query of a URL.
func ParseLocation(s string) error {
	_, err := parseLocation(s)
	return err
}

// location is where an image comes from: one of the two is set.
type location struct {
	url  *url.URL // http or https
	path string   // a local file
}

// scheme matches what makes a location a URL. Two letters at least, so that a
// Windows drive is none.
var scheme = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.:-]+)://|^(?i:(https?|file)):`)

// compressed are the ends of names whose files are refused when they are read;
// their names alone give them away at plan time.
var compressed = map[string]string{".lz4": "lz4", ".zip": "zip", ".7z": "7z"}

func parseLocation(s string) (location, error) {
	at, err := splitLocation(s)
	if err != nil {
		return location{}, err
	}
	name := at.path
	if at.url != nil {
		name = at.url.Path
	}
	if method, ok := compressed[strings.ToLower(path.Ext(name))]; ok {
		return location{}, fmt.Errorf("image source %s is compressed with %s; give a qcow2 disk, or one compressed with gzip, xz, zstd or bzip2", at, method)
	}
	return at, nil
}

func splitLocation(s string) (location, error) {
	match := scheme.FindStringSubmatch(s)
	switch {
	case s == "":
		return location{}, errors.New("image source is empty; give an https:// or http:// URL or the path of a file")
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return location{}, errors.New("image source contains a control character")
	case strings.HasPrefix(s, "~"):
		return location{}, fmt.Errorf("image source %s begins with ~, which nothing expands; use pathexpand(...) or an absolute path", s)
	case match == nil:
		return location{path: s}, nil
	}

	name := strings.ToLower(match[1] + match[2])
	if name != "https" && name != "http" && name != "file" {
		return location{}, fmt.Errorf("image source has the unknown scheme %q; use https://, http://, file:// or the path of a file", name)
	}
	u, err := url.Parse(s)
	if err != nil {
		// The parser's text quotes pieces of its input, secret ones included.
		if parse := new(url.Error); errors.As(err, &parse) && !strings.ContainsAny(s, "@?") {
			return location{}, fmt.Errorf("image source is not a valid URL: %w", parse.Err)
		}
		return location{}, errors.New("image source is not a valid URL")
	}
	if name == "file" {
		if (u.Host != "" && u.Host != "localhost") || !path.IsAbs(u.Path) {
			return location{}, errors.New("image source is a file URL without an absolute path on this machine; write file:///path/to/image")
		}
		return location{path: u.Path}, nil
	}
	if u.Hostname() == "" || u.Opaque != "" {
		return location{}, fmt.Errorf("image source is a URL without a host; write %s://host/path", name)
	}
	return location{url: u}, nil
}

// String gives the location as it may be shown.
func (l location) String() string {
	if l.url == nil {
		return l.path
	}
	return redactURL(l.url)
}

// redactURL gives a URL without what may be secret: user information and
// query, where signed URLs carry their signature.
func redactURL(u *url.URL) string {
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	if u.RawQuery != "" {
		return shown.String() + "?..."
	}
	return shown.String()
}

// anyURL matches a URL within a text: scheme, user information, rest, query.
var anyURL = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s"/]*@)?([^\s"?#]*)(?:([?])[^\s"]*)?`)

// redact takes from a text what may be secret in the URLs it mentions.
func redact(text string) string {
	return anyURL.ReplaceAllStringFunc(text, func(found string) string {
		m := anyURL.FindStringSubmatch(found)
		if m[3] != "" {
			return m[1] + m[2] + "?..."
		}
		return m[1] + m[2]
	})
}
