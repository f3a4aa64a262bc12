// Terraform-provider-egressproxy serves the egressproxy provider to Terraform
// and OpenTofu.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/provider"
)

// version is set at link time: -ldflags "-X main.version=1.2.3".
var version = "dev"

func main() {
	debug := flag.Bool("debug", false, "serve to a debugger: print the TF_REATTACH_PROVIDERS value to use and wait")
	printVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *printVersion {
		fmt.Println(version)
		return
	}
	err := providerserver.Serve(context.Background(), provider.New(version), providerserver.ServeOpts{
		Address: "registry.terraform.io/egressproxy/egressproxy",
		Debug:   *debug,
	})
	if err != nil {
		log.Fatal(err)
	}
}
