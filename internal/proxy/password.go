package proxy

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/bcrypt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// maxPassword is bcrypt's limit in bytes: it ignores what comes after, so that
// a longer password would be accepted by its beginning alone.
const maxPassword = 72

// HashPassword gives the bcrypt hash of pw as crypt(3) writes it, with the
// prefix $2y$, for Squid's basic_ncsa_auth. A password that ValidatePassword
// refuses is an error; no error text holds the password.
func HashPassword(pw egress.Secret) (string, error) {
	if err := ValidatePassword(pw); err != nil {
		return "", err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(pw.Reveal()), bcrypt.DefaultCost)
	if err != nil {
		return "", fmt.Errorf("could not be hashed: %w", err)
	}
	// Go writes $2a$; the two are the same function since crypt_blowfish 1.1,
	// and $2y$ is what every crypt(3) knows.
	return "$2y$" + strings.TrimPrefix(string(hash), "$2a$"), nil
}

// ValidatePassword tells why pw cannot be a client's password: it must have 1
// to 72 bytes without line breaks and NUL. The error completes the sentence
// "the password ..." and never holds the password.
func ValidatePassword(pw egress.Secret) error {
	text := pw.Reveal()
	switch {
	case text == "":
		return errors.New("is empty")
	case len(text) > maxPassword:
		return fmt.Errorf("has %d bytes; bcrypt takes at most %d", len(text), maxPassword)
	case strings.ContainsAny(text, "\r\n\x00"):
		return errors.New("holds a line break or a NUL byte")
	}
	return nil
}
