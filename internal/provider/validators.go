package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	tfpath "github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

// minMemoryMiB is the least memory a machine may have: less does not boot any
// current Linux distribution.
const minMemoryMiB = 128

// stringRule is a validator of one string by a function, whose error says what
// is wrong with which value and how it should be. Null and unknown values
// pass.
type stringRule struct {
	want  string // completes "value must be"
	check func(string) error
}

var (
	nonEmpty    = stringRule{"not empty", checkNonEmpty}
	entryName   = stringRule{"a name of letters, digits, dots, underscores and hyphens", checkEntryName}
	duration    = stringRule{"a positive duration", checkDuration}
	imageSource = stringRule{"an https:// or http:// URL, a file's path, or volume:NAME", checkImageSource}
	sha256Sum   = stringRule{"64 hexadecimal digits, or the URL of a list of checksums", checkChecksum}
	hostPort    = stringRule{"HOST:PORT", checkHostPort}
	clientName  = stringRule{"a client's name", proxy.ValidateUser}
	domain      = stringRule{"a domain, or a dot and a domain", proxy.ValidateDomain}
	password    = stringRule{"a password of 1 to 72 bytes", checkPassword}
	tcpPort     = int64validator.Between(1, 65535)

	absolutePath      = stringRule{"an absolute path", checkAbsolutePath}
	vendorData        = stringRule{"cloud-init user-data with its kind in the first line", checkVendorData}
	macAddress        = stringRule{"a MAC address", checkMACAddress}
	ipAddress         = stringRule{"an IP address", checkIPAddress}
	addressWithPrefix = stringRule{"an IP address with its prefix length", checkAddressWithPrefix}
)

func (r stringRule) Description(context.Context) string { return "value must be " + r.want }

func (r stringRule) MarkdownDescription(ctx context.Context) string { return r.Description(ctx) }

func (r stringRule) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if err := r.check(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, fmt.Sprintf("Invalid value of %s", req.Path), sentence(err.Error()))
	}
}

// requiredInEntry makes an attribute of a map's entries required. The schema's
// own Required cannot be used there: it takes the attributes of an entry that
// is not known yet, such as a module's output, for missing.
type requiredInEntry struct{}

func (requiredInEntry) Description(context.Context) string { return "value must be given" }

func (r requiredInEntry) MarkdownDescription(ctx context.Context) string { return r.Description(ctx) }

func (r requiredInEntry) ValidateString(ctx context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	r.check(ctx, req.Config, req.Path, req.ConfigValue, &resp.Diagnostics)
}

func (r requiredInEntry) ValidateInt64(ctx context.Context, req validator.Int64Request, resp *validator.Int64Response) {
	r.check(ctx, req.Config, req.Path, req.ConfigValue, &resp.Diagnostics)
}

func (requiredInEntry) check(ctx context.Context, config tfsdk.Config, at tfpath.Path, value attr.Value, diags *diag.Diagnostics) {
	if !value.IsNull() {
		return
	}
	var entry types.Object
	if d := config.GetAttribute(ctx, at.ParentPath(), &entry); d.HasError() || entry.IsNull() || entry.IsUnknown() {
		return
	}
	diags.AddAttributeError(at, fmt.Sprintf("Missing value of %s", at), fmt.Sprintf("%s is required. Give it a value.", at))
}

func checkNonEmpty(s string) error {
	if s == "" {
		return errors.New("the value is empty: give one, or leave the attribute out")
	}
	return nil
}

func checkPassword(s string) error {
	if err := proxy.ValidatePassword(egress.NewSecret(s)); err != nil {
		return fmt.Errorf("the password %w", err)
	}
	return nil
}

func checkHostPort(s string) error {
	_, _, err := proxy.SplitTarget(s)
	return err
}

var entryNamePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

func checkEntryName(name string) error {
	if !entryNamePattern.MatchString(name) {
		return fmt.Errorf("%q is not a name: use letters, digits, dots, underscores and hyphens, with a letter or digit first and last", name)
	}
	return nil
}

func checkDuration(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration: write numbers with a unit, like 500ms, 30s, 15m or 1h30m", text)
	}
	if d <= 0 {
		return fmt.Errorf("the duration %q is not more than zero", text)
	}
	return nil
}

var sha256Pattern = regexp.MustCompile(`^[0-9A-Fa-f]{64}$`)

func checkSHA256(sum string) error {
	if !sha256Pattern.MatchString(sum) {
		return fmt.Errorf("%q is not a SHA-256 checksum: it must be 64 hexadecimal digits, as sha256sum prints them for the file", sum)
	}
	return nil
}

func checkAbsolutePath(text string) error {
	if !path.IsAbs(text) || path.Clean(text) != text {
		return fmt.Errorf("%q is not a clean absolute path, like /var/log/egress/ci-1.log", text)
	}
	return nil
}

func checkMACAddress(text string) error {
	mac, err := net.ParseMAC(text)
	switch {
	case err != nil || len(mac) != 6 || len(text) != 17 || strings.ContainsRune(text, '-'):
		return fmt.Errorf("%q is not a MAC address: write six bytes like 52:54:00:12:34:56", text)
	case mac[0]&1 != 0:
		return fmt.Errorf("%q is a multicast address: the first byte of a machine's MAC address is even, as in 52:54:00:12:34:56", text)
	}
	return nil
}

func checkIPAddress(text string) error {
	if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" {
		return fmt.Errorf("%q is not an IP address, like 192.0.2.1 or 2001:db8::1", text)
	}
	return nil
}

func checkAddressWithPrefix(text string) error {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not an IP address with its prefix length, like 192.0.2.10/24 or 2001:db8::10/64", text)
	case prefix.Masked().Addr() == prefix.Addr() && prefix.Bits() < prefix.Addr().BitLen()-1:
		return fmt.Errorf("%q is the address of a network: give the machine's own, like %s", text, netip.PrefixFrom(prefix.Addr().Next(), prefix.Bits()))
	}
	return nil
}

// sentences makes a sentence of each line of an error's text.
func sentences(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		if s := sentence(line); s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, "\n")
}

// sentence makes a sentence of an error's text.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	text = strings.ToUpper(text[:1]) + text[1:]
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}
