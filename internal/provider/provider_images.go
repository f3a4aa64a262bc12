package provider

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/image"
)

type imageModel struct {
	Source types.String `tfsdk:"source"`
	SHA256 types.String `tfsdk:"sha256"`
}

func imagesAttribute() schema.Attribute {
	return schema.MapNestedAttribute{
		MarkdownDescription: "Disk images to start machines from, in qcow2 or raw format, by the name that an instance's `kvm.image` refers to. An image is fetched once per host and storage pool. " +
			"One that is compressed with gzip, xz, zstd or bzip2 is unpacked on the way; a compressed raw disk only where its file tells the size, as zstd's do.",
		Optional:   true,
		Validators: []validator.Map{mapvalidator.NoNullValues()},
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"source": schema.StringAttribute{
				MarkdownDescription: "Required. An `https://` or `http://` URL, the path of a file on the machine Terraform runs on, or `volume:NAME` for a volume that is in the instance's storage pool already. A new source with the same checksum changes nothing; another volume replaces the instances.",
				Optional:            true,
				Validators:          []validator.String{requiredInEntry{}, imageSource},
			},
			"sha256": schema.StringAttribute{
				MarkdownDescription: "Required, but for a volume. SHA-256 checksum of the file as it is at `source`, 64 hexadecimal digits. Changing it replaces the instances made from the image. " +
					"Or the URL of a list of checksums, as `sha256sum` writes it, that has the file's name: it is read when an instance is made, and a list that changes later changes no instance.",
				Optional:   true,
				Validators: []validator.String{sha256Sum},
			},
		}},
	}
}

func readImage(_ context.Context, name string, m imageModel) (egress.Image, diag.Diagnostics) {
	out := egress.Image{Name: name, Source: m.Source.ValueString()}
	if sum := m.SHA256.ValueString(); checkSHA256(sum) == nil {
		out.SHA256 = strings.ToLower(sum)
	} else {
		out.ChecksumURL = sum
	}
	return out, nil
}

// validateImages checks what of an image takes both its attributes to see.
func validateImages(images table[egress.Image]) diag.Diagnostics {
	var diags diag.Diagnostics
	known := images.known()
	for _, name := range slices.Sorted(maps.Keys(known)) {
		img, at := known[name], path.Root("kvm").AtName("images").AtMapKey(name).AtName("sha256")
		summed := img.SHA256 != "" || img.ChecksumURL != ""
		switch {
		case img.Source == "": // said already
		case img.Volume() == "" && !summed:
			diags.AddAttributeError(at, "Missing checksum of an image",
				"kvm.images."+name+".sha256 is required: give the checksum that the image's publisher names, the URL of their list of checksums, or what sha256sum prints for the file.")
		case img.Volume() != "" && summed:
			diags.AddAttributeError(at, "Checksum of a volume",
				"kvm.images."+name+" is the volume "+img.Volume()+", which is taken as it is in the pool: leave sha256 out.")
		}
	}
	return diags
}

func checkImageSource(source string) error {
	volume, isVolume := strings.CutPrefix(source, "volume:")
	switch {
	case !isVolume:
		return image.ParseLocation(source)
	case volume == "" || strings.ContainsAny(volume, "/\\") || strings.ContainsFunc(volume, unicode.IsControl):
		return fmt.Errorf("%q does not name a volume of a storage pool, as volume:debian-12.qcow2 does", source)
	}
	return nil
}

func checkChecksum(text string) error {
	if !strings.Contains(text, "://") {
		return checkSHA256(text)
	}
	return image.ParseChecksumURL(text)
}
