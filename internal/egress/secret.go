package egress

// Secret is text that must not show up anywhere but where it is used: it
// formats and marshals as a placeholder. Reveal gives the text itself.
type Secret struct{ text string }

// redacted stands for a secret wherever one is printed or encoded.
const redacted = "(secret)"

// NewSecret wraps text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal gives the secret's text.
func (s Secret) Reveal() string { return s.text }

// IsZero tells whether there is no secret.
func (s Secret) IsZero() bool { return s.text == "" }

// String gives the placeholder, so that no %v or %s leaks the text.
func (s Secret) String() string { return redacted }

// GoString gives the placeholder, so that no %#v leaks the text.
func (s Secret) GoString() string { return redacted }

// MarshalText gives the placeholder, so that no encoder leaks the text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
