package cloudinit

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"regexp"
	"strings"
)

// Part is one piece of user-data.
type Part struct {
	// ContentType says what it is, as DetectContentType gives it; empty to
	// have it detected.
	ContentType string
	// Name is the file name that cloud-init shows in its logs; may be empty.
	Name string
	// Content is the piece as it is given to cloud-init.
	Content []byte
}

// contentTypes are the beginnings cloud-init knows user-data by, the longer
// of two that share one first (cloud-init's handlers/__init__.py).
var contentTypes = []struct{ prefix, contentType string }{
	{"#cloud-config-archive", "text/cloud-config-archive"},
	{"#cloud-config-jsonp", "text/cloud-config-jsonp"},
	{"#cloud-config", "text/cloud-config"},
	{"#cloud-boothook", "text/cloud-boothook"},
	{"#part-handler", "text/part-handler"},
	{"#include-once", "text/x-include-once-url"},
	{"#include", "text/x-include-url"},
	{"## template: jinja", "text/jinja2"},
	{"#!", "text/x-shellscript"},
}

const (
	gzipType      = "application/gzip"
	multipartType = "multipart/mixed"
	// maxUnpacked bounds user-data that was given compressed, in bytes. No
	// data source takes more than 16 MiB.
	maxUnpacked = 16 << 20
)

// DetectContentType tells what user-data is by how it begins, as cloud-init
// does. The error lists the beginnings that it understands. It holds nothing of
// the user-data, which may be secret.
func DetectContentType(userData []byte) (string, error) {
	if bytes.HasPrefix(userData, []byte{0x1f, 0x8b}) {
		return gzipType, nil
	}
	// cloud-init strips white space from the front.
	text := bytes.TrimLeft(userData, " \t\r\n")
	for _, known := range contentTypes {
		if bytes.HasPrefix(bytes.ToLower(text), []byte(known.prefix)) {
			return known.contentType, nil
		}
	}
	if header, err := mimeHeader(text); err == nil {
		if kind := strings.ToLower(header.Get("Content-Type")); strings.HasPrefix(kind, "multipart/") {
			return multipartType, nil
		}
	}
	why := "it begins with nothing that cloud-init knows"
	if len(text) == 0 {
		why = "it is empty"
	}
	var known []string
	for _, k := range contentTypes {
		known = append(known, k.prefix)
	}
	return "", fmt.Errorf("cloud-init would ignore this user-data: %s; it understands what begins with %s, a MIME message with Content-Type: multipart/..., and any of these compressed by gzip",
		why, strings.Join(known, ", "))
}

// mimeHeader reads the header of a MIME message.
func mimeHeader(text []byte) (textproto.MIMEHeader, error) {
	return textproto.NewReader(bufio.NewReader(bytes.NewReader(text))).ReadMIMEHeader()
}

// mergeType makes a person's own configuration and ours both survive: cloud-
// init's default is that of two parts with a runcmd the later one wins. Our
// lists go to the front, so that nothing a person's commands do comes before
// the proxy is up; of two single values the one already there stays.
const mergeType = "list(prepend)+dict(no_replace,recurse_list)+str()"

// UserData gives the user-data of several parts: a single one as it is, more
// as a MIME multi-part message. A later part is merged into those before it:
// the lists of a later cloud-config (write_files, runcmd, bootcmd) go before
// the earlier one's, its other values count where the earlier has none. So the
// part that must work comes last. A part without content is left out. A part
// given compressed is unpacked, so that it can be a part.
//
// The same parts give the same bytes. The error is DetectContentType's.
func UserData(parts ...Part) ([]byte, error) {
	var kept []Part
	for i, part := range parts {
		if len(part.Content) == 0 {
			continue
		}
		if part.ContentType == "" {
			kind, err := DetectContentType(part.Content)
			if err != nil {
				return nil, fmt.Errorf("part %d: %w", i+1, err)
			}
			part.ContentType = kind
		}
		kept = append(kept, part)
	}
	switch len(kept) {
	case 0:
		return nil, errors.New("user-data has no parts")
	case 1:
		return kept[0].Content, nil
	}
	for i, part := range kept {
		if part.ContentType != gzipType {
			continue
		}
		var err error
		if kept[i], err = unpack(part); err != nil {
			return nil, fmt.Errorf("part %d: %w", i+1, err)
		}
	}
	return message(kept)
}

// unpack makes a part of a compressed one.
func unpack(part Part) (Part, error) {
	r, err := gzip.NewReader(bytes.NewReader(part.Content))
	if err != nil {
		return Part{}, fmt.Errorf("unpacking compressed user-data: %w", err)
	}
	content, err := io.ReadAll(io.LimitReader(r, maxUnpacked+1))
	if err != nil {
		return Part{}, fmt.Errorf("unpacking compressed user-data: %w", err)
	}
	if len(content) > maxUnpacked {
		return Part{}, fmt.Errorf("unpacking compressed user-data: it has more than %d MiB", maxUnpacked>>20)
	}
	kind, err := DetectContentType(content)
	if err != nil {
		return Part{}, fmt.Errorf("unpacking compressed user-data: %w", err)
	}
	if kind == gzipType {
		return Part{}, errors.New("unpacking compressed user-data: it is compressed twice")
	}
	return Part{ContentType: kind, Name: part.Name, Content: content}, nil
}

// message writes parts as a MIME message (RFC 2046). The boundary comes from
// the content, so that it is not within it and the same each time.
func message(parts []Part) ([]byte, error) {
	sum := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(sum, "%d %s\n", len(p.Content), p.ContentType)
		_, _ = sum.Write(p.Content)
	}
	boundary := "egressproxy-" + hex.EncodeToString(sum.Sum(nil))[:32]
	var b bytes.Buffer
	fmt.Fprintf(&b, "Content-Type: %s; boundary=%q\nMIME-Version: 1.0\n\n", multipartType, boundary)
	for i, p := range parts {
		fmt.Fprintf(&b, "--%s\n", boundary)
		if err := writePart(&b, p); err != nil {
			return nil, fmt.Errorf("part %d: %w", i+1, err)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "--%s--\n", boundary)
	return b.Bytes(), nil
}

var (
	typeForm = regexp.MustCompile(`^[a-z0-9.+-]+/[a-z0-9.+-]+$`)
	nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]*$`)
)

func writePart(b *bytes.Buffer, p Part) error {
	if !typeForm.MatchString(p.ContentType) {
		return fmt.Errorf("%q is not a content type", p.ContentType)
	}
	if !nameForm.MatchString(p.Name) {
		return fmt.Errorf("%q is not a plain file name", p.Name)
	}
	// A message within the message brings its own header.
	if p.ContentType == multipartType {
		b.Write(bytes.TrimLeft(p.Content, " \t\r\n"))
		return nil
	}
	fmt.Fprintf(b, "Content-Type: %s; charset=\"utf-8\"\nMIME-Version: 1.0\nMerge-Type: %s\nX-Merge-Type: %s\n", p.ContentType, mergeType, mergeType)
	if p.Name != "" {
		fmt.Fprintf(b, "Content-Disposition: attachment; filename=%q\n", p.Name)
	}
	if plain(p.Content) {
		b.WriteString("Content-Transfer-Encoding: 7bit\n\n")
		b.Write(p.Content)
		return nil
	}
	b.WriteString("Content-Transfer-Encoding: base64\n\n")
	text := base64.StdEncoding.EncodeToString(p.Content)
	for len(text) > 76 {
		b.WriteString(text[:76] + "\n")
		text = text[76:]
	}
	b.WriteString(text)
	return nil
}

// plain tells whether content passes through MIME as it is: ASCII, in lines
// within the limit of RFC 5322, without carriage returns.
func plain(content []byte) bool {
	for line := range bytes.Lines(content) {
		if len(line) > 998 {
			return false
		}
	}
	return !bytes.ContainsFunc(content, func(r rune) bool {
		return (r < ' ' && r != '\n' && r != '\t') || r > '~'
	})
}
