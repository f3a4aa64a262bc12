// Package terraform runs the real CLI with the built provider against a real
// libvirt daemon, as a person would: real guests with real cloud-init and
// Squid for the main course, boot sectors for what goes wrong on the way. It
// needs root.
package terraform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/namespace"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/origin"
)

// What is made before the namespaces are entered, where there is a network to
// make it with, is handed in by these variables.
const (
	imageVariable    = "EGRESSPROXY_ACCEPTANCE_IMAGE"
	checksumVariable = "EGRESSPROXY_ACCEPTANCE_IMAGE_SHA256"
	providerVariable = "EGRESSPROXY_ACCEPTANCE_PROVIDER"
)

var (
	// hv is the hypervisor that all tests share.
	hv *hypervisor.Hypervisor
	// cli is the terraform or tofu that is tested with.
	cli string
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv(providerVariable) == "" {
		dir, err := os.MkdirTemp("", "egressproxy-provider-")
		if err != nil {
			return fail(err)
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the temporary directory at worst
		if err := prepare(dir); err != nil {
			return fail(err)
		}
	}
	return namespace.Run(func() int { return runInside(m) })
}

// prepare builds the provider and the guest image.
func prepare(dir string) error {
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "terraform-provider-egressproxy"), "github.com/egressproxy/terraform-provider-egressproxy")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build does
	if err := build.Run(); err != nil {
		return fmt.Errorf("building the provider: %w", err)
	}
	cache, err := guest.CacheDir()
	if err != nil {
		return err
	}
	image, checksum, err := guest.Image(context.Background(), cache, os.Stderr)
	if err != nil {
		return err
	}
	return errors.Join(os.Setenv(providerVariable, dir), os.Setenv(imageVariable, image), os.Setenv(checksumVariable, checksum))
}

func runInside(m *testing.M) int {
	var err error
	if cli, err = findCLI(); err != nil {
		return fail(err)
	}
	dir, err := os.MkdirTemp("", "egressproxy-lab-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the temporary directory at worst
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if hv, err = hypervisor.Start(ctx, hypervisor.Options{Dir: filepath.Join(dir, "hv"), Hosts: origin.Hosts}); err != nil {
		return fail(err)
	}
	target, err := origin.Start(ctx)
	if err != nil {
		return fail(err)
	}
	code := m.Run()
	if err := errors.Join(target.Close(), hv.Stop(context.Background())); err != nil {
		return fail(err)
	}
	return code
}

func findCLI() (string, error) {
	names := []string{"terraform", "tofu"}
	if given := os.Getenv("TF_ACC_TERRAFORM_PATH"); given != "" {
		names = []string{given}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("neither terraform nor tofu is on PATH; TF_ACC_TERRAFORM_PATH can name one")
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}
