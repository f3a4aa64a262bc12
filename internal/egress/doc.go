// Package egress is the vocabulary of the provider: what an egress proxy is
// wanted to be (Spec), what one was found to be (Instance), how it is named
// (ProviderID, Tags), what can go wrong (the error kinds and Fault) and what
// every backend can do with it (Backend).
//
// The package is pure: it talks to nothing and imports nothing else of this
// module.
package egress
