package sshserver

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"fmt"

	"golang.org/x/crypto/ssh"
)

// Key is a fresh key pair.
type Key struct {
	// Signer signs with the private key.
	Signer ssh.Signer
	// Private is the private key itself, as an agent takes it.
	Private crypto.PrivateKey
}

// NewKey makes a key pair of one of ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256
// and ssh.KeyAlgoRSA (2048 bits).
func NewKey(algorithm string) (Key, error) {
	var private crypto.PrivateKey
	var err error
	switch algorithm {
	case ssh.KeyAlgoED25519:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	case ssh.KeyAlgoECDSA256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ssh.KeyAlgoRSA:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		return Key{}, fmt.Errorf("making an SSH key: unknown algorithm %q", algorithm)
	}
	if err != nil {
		return Key{}, fmt.Errorf("making an SSH key: %w", err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return Key{}, fmt.Errorf("making an SSH key: %w", err)
	}
	return Key{Signer: signer, Private: private}, nil
}

// Public gives the public half.
func (k Key) Public() ssh.PublicKey { return k.Signer.PublicKey() }

// PEM gives the private key in OpenSSH's file format, unencrypted.
func (k Key) PEM() (string, error) {
	block, err := ssh.MarshalPrivateKey(k.Private, "")
	if err != nil {
		return "", fmt.Errorf("encoding an SSH key: %w", err)
	}
	return string(pem.EncodeToMemory(block)), nil
}
