package provider

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

type imageModel struct {
	Source types.String `tfsdk:"source"`
	SHA256 types.String `tfsdk:"sha256"`
}

func imagesAttribute() schema.Attribute {
	return schema.MapNestedAttribute{
		MarkdownDescription: "Disk images to start machines from, in qcow2 or raw format and not compressed, by the name that an instance's `kvm.image` refers to. An image is fetched once per host and storage pool.",
		Optional:            true,
		Validators:          []validator.Map{mapvalidator.NoNullValues()},
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"source": schema.StringAttribute{
				MarkdownDescription: "Required. An `https://` or `http://` URL, or the path of a file on the machine Terraform runs on. A new source with the same checksum changes nothing.",
				Optional:            true,
				Validators:          []validator.String{requiredInEntry{}, imageSource},
			},
			"sha256": schema.StringAttribute{
				MarkdownDescription: "Required. SHA-256 checksum of the file as it is at `source`, 64 hexadecimal digits. Changing it replaces the instances made from the image.",
				Optional:            true,
				Validators:          []validator.String{requiredInEntry{}, sha256Sum},
			},
		}},
	}
}

func readImage(_ context.Context, name string, m imageModel) (egress.Image, diag.Diagnostics) {
	return egress.Image{Name: name, Source: m.Source.ValueString(), SHA256: strings.ToLower(m.SHA256.ValueString())}, nil
}
