package connection

import (
	"fmt"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"
)

// keyFate is what became of a key that was there to be offered. The SSH library
// tells of all keys together only.
type keyFate struct {
	mu      sync.Mutex
	offered bool
	wanted  bool  // the server wanted a signature: it knows the key
	failed  error // why there was no signature
}

// String says it for an error text.
func (f *keyFate) String() string {
	if f == nil {
		return "was not offered"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.failed != nil:
		return fmt.Sprintf("was accepted by the server, but it did not sign: %v", f.failed)
	case f.wanted:
		return "was accepted by the server, which wants a password or a second factor beside it"
	case f.offered:
		return "was refused by the server"
	}
	return "was not offered"
}

// observed gives a signer that notes its fate.
func observed(signer ssh.Signer, fate *keyFate) ssh.Signer {
	o := observedSigner{Signer: signer, fate: fate}
	if isRSA(signer) {
		return rsaSigner{o}
	}
	return o
}

func isRSA(signer ssh.Signer) bool {
	kind := signer.PublicKey().Type()
	return kind == ssh.KeyAlgoRSA || kind == ssh.CertAlgoRSAv01
}

// rsaSigner prefers SHA-512, as OpenSSH's client does: servers before OpenSSH
// 9.4 do not say which of the SHA-2 algorithms they take.
type rsaSigner struct{ observedSigner }

// Algorithms gives the algorithms in the order in which they are preferred.
func (rsaSigner) Algorithms() []string {
	return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
}

// rsaSHA256Signer is for the servers that take nothing else, and do not say so.
type rsaSHA256Signer struct{ observedSigner }

// Algorithms gives the one.
func (rsaSHA256Signer) Algorithms() []string { return []string{ssh.KeyAlgoRSASHA256} }

type observedSigner struct {
	ssh.Signer
	fate *keyFate
}

// PublicKey is asked for when the key's turn to be offered comes.
func (s observedSigner) PublicKey() ssh.PublicKey {
	s.fate.mu.Lock()
	defer s.fate.mu.Unlock()
	s.fate.offered = true
	return s.Signer.PublicKey()
}

// SignWithAlgorithm is asked for when the server knows the key.
func (s observedSigner) SignWithAlgorithm(rand io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	signer, ok := s.Signer.(ssh.AlgorithmSigner)
	if !ok {
		return s.Sign(rand, data)
	}
	signature, err := signer.SignWithAlgorithm(rand, data, algorithm)
	s.fate.mu.Lock()
	defer s.fate.mu.Unlock()
	s.fate.wanted, s.fate.failed = true, err
	return signature, err
}
