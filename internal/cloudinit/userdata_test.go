package cloudinit

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func compressed(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestDetectContentTypeKnowsWhatCloudInitKnows(t *testing.T) {
	for text, want := range map[string]string{
		"#cloud-config\na: b\n": "text/cloud-config", "#cloud-config": "text/cloud-config", "\n  #Cloud-Config\n": "text/cloud-config",
		"#cloud-config-archive\n": "text/cloud-config-archive", "#cloud-config-jsonp\n": "text/cloud-config-jsonp",
		"#!/bin/sh\n": "text/x-shellscript", "#include\nhttps://x.test/\n": "text/x-include-url", "#include-once\n": "text/x-include-once-url",
		"## template: jinja\n#cloud-config\n": "text/jinja2", "#cloud-boothook\n": "text/cloud-boothook", "#part-handler\n": "text/part-handler",
		"Content-Type: multipart/mixed; boundary=\"x\"\nMIME-Version: 1.0\n\n--x--\n": "multipart/mixed",
		"MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n":      "multipart/mixed",
		"\x1f\x8b\x08": "application/gzip",
	} {
		got, err := DetectContentType([]byte(text))
		if got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "\n", "write_files: []\n", "# cloud-config\n", "Content-Type: text/plain\n\nx", strings.Repeat("x", 4096)} {
		_, err := DetectContentType([]byte(text))
		if err == nil || !strings.Contains(err.Error(), "#cloud-config") || !strings.Contains(err.Error(), "multipart") || len(err.Error()) > 500 {
			t.Errorf("%.20q: got %v, want an error that lists what is understood", text, err)
		}
	}
}

func TestNoErrorOnUserDataShowsAnyOfIt(t *testing.T) {
	const secret = "hunter2"
	for _, text := range []string{
		secret, "\n" + secret, "# cloud-config\npassword: " + secret, "Content-Type: text/" + secret + "\n\nx",
		secret + "\n\nx", "Content-Type: multipart/mixed\n" + secret + "\n", "password: " + secret + "\n\n",
	} {
		for name, content := range map[string][]byte{"plain": []byte(text), "compressed": compressed(t, text), "compressed twice": compressed(t, string(compressed(t, text)))} {
			_, err := UserData(Part{Content: content}, Part{Content: []byte("#cloud-config\n")})
			if err == nil {
				t.Errorf("%q, %s: no error", text, name)
			} else if strings.Contains(err.Error(), secret) {
				t.Errorf("%q, %s: the error shows it: %v", text, name, err)
			}
		}
	}
}

// leaf is a part of a MIME message that holds no others.
type leaf struct{ ContentType, Merge, Text string }

func leaves(t *testing.T, header, boundary string, body io.Reader) []leaf {
	t.Helper()
	if header != "multipart/mixed" {
		t.Fatalf("not a multi-part message: %s", header)
	}
	var out []leaf
	r := multipart.NewReader(body, boundary)
	for {
		part, err := r.NextRawPart()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		kind, params, err := mime.ParseMediaType(part.Header.Get("Content-Type"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(kind, "multipart/") {
			out = append(out, leaves(t, kind, params["boundary"], part)...)
			continue
		}
		text, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		if part.Header.Get("Content-Transfer-Encoding") == "base64" {
			if text, err = base64.StdEncoding.DecodeString(strings.ReplaceAll(string(text), "\n", "")); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, leaf{kind, part.Header.Get("Merge-Type"), string(text)})
	}
}

func read(t *testing.T, userData []byte) []leaf {
	t.Helper()
	msg, err := mail.ReadMessage(bytes.NewReader(userData))
	if err != nil {
		t.Fatalf("%v in\n%s", err, userData)
	}
	kind, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	return leaves(t, kind, params["boundary"], msg.Body)
}

func TestUserDataOfOnePartIsThatPart(t *testing.T) {
	for _, text := range []string{"#cloud-config\na: b\n", "#!/bin/sh\n", string(compressed(t, "#cloud-config\n"))} {
		got, err := UserData(Part{}, Part{Content: []byte(text)})
		if err != nil || string(got) != text {
			t.Errorf("%q became %q, %v", text, got, err)
		}
	}
}

func TestUserDataOfSeveralPartsKeepsEachAndItsOrder(t *testing.T) {
	config, script := "#cloud-config\nruncmd: [a]\n", "#!/bin/sh\necho ü\r\n"
	long := "#!/bin/sh\n# " + strings.Repeat("x", 2000) + "\n"
	ours := "#cloud-config\nruncmd: [b]\n"
	inner, err := UserData(Part{Content: []byte(config)}, Part{Content: []byte(script)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		given []byte
		want  []leaf
	}{
		"cloud-config":     {[]byte(config), []leaf{{"text/cloud-config", mergeType, config}}},
		"no line break":    {[]byte("#cloud-config"), []leaf{{"text/cloud-config", mergeType, "#cloud-config"}}},
		"script":           {[]byte(script), []leaf{{"text/x-shellscript", mergeType, script}}},
		"long line":        {[]byte(long), []leaf{{"text/x-shellscript", mergeType, long}}},
		"compressed":       {compressed(t, config), []leaf{{"text/cloud-config", mergeType, config}}},
		"multi-part":       {inner, []leaf{{"text/cloud-config", mergeType, config}, {"text/x-shellscript", mergeType, script}}},
		"multi-part, gzip": {compressed(t, string(inner)), []leaf{{"text/cloud-config", mergeType, config}, {"text/x-shellscript", mergeType, script}}},
	} {
		t.Run(name, func(t *testing.T) {
			parts := []Part{{Content: c.given}, {Name: "egressproxy.cfg", Content: []byte(ours)}}
			got, err := UserData(parts...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(append(c.want, leaf{"text/cloud-config", mergeType, ours}), read(t, got)); diff != "" {
				t.Error(diff)
			}
			again, err := UserData(parts...)
			if err != nil || !bytes.Equal(got, again) {
				t.Errorf("the same parts gave other bytes (%v)", err)
			}
		})
	}
}

func TestUserDataRefusesWhatCloudInitWouldIgnore(t *testing.T) {
	ours := Part{Content: []byte("#cloud-config\n")}
	for name, parts := range map[string][]Part{
		"nothing":          {},
		"empty":            {{}},
		"unknown":          {{Content: []byte("hello")}, ours},
		"unknown alone":    {{Content: []byte("hello")}},
		"unknown, gzip":    {{Content: compressed(t, "hello")}, ours},
		"broken gzip":      {{Content: []byte{0x1f, 0x8b, 1}}, ours},
		"gzip in gzip":     {{Content: compressed(t, string(compressed(t, "#!/bin/sh\n")))}, ours},
		"gzip bomb":        {{Content: compressed(t, "#"+strings.Repeat(" ", maxUnpacked))}, ours},
		"type with header": {{ContentType: "text/x\nX: y", Content: []byte("x")}, ours},
		"name with quote":  {{Name: "a\"b", Content: []byte("#!/bin/sh\n")}, ours},
	} {
		if got, err := UserData(parts...); err == nil {
			t.Errorf("%s: no error, but %q", name, got)
		}
	}
}
