package egress

import "context"

// Backend maps the life of an instance onto one kind of infrastructure.
// Implementations are safe for concurrent use, bound every wait by ctx, and
// connect lazily: constructing one talks to nobody.
//
// Errors are of the kinds in this package (see Fault); test them with
// errors.Is.
type Backend interface {
	// Create brings the instance up and returns when its proxy forwards. It
	// is safe to repeat: what an interrupted creation of ours left is taken up
	// or made anew. Anything finished or foreign under that name is
	// ErrAlreadyExists.
	//
	// The Instance is what exists, also beside an error: its ID is the zero
	// ProviderID only if nothing of this instance was made.
	Create(ctx context.Context, spec Spec) (Instance, error)

	// Get reads the instance. It returns ErrNotFound only when the backend
	// itself said that there is no such object, never because it could not be
	// asked.
	Get(ctx context.Context, id ProviderID) (Instance, error)

	// Update changes the instance in place to match spec, as far as its
	// lifecycle rules allow, and starts or stops it as spec wants. An object
	// that was made by others is adopted. It returns what exists, also beside
	// an error. An object of that name with another UID than spec's is
	// ErrNotFound.
	Update(ctx context.Context, id ProviderID, spec Spec) (Instance, error)

	// Delete removes the instance and everything made for it. It is
	// idempotent: what is gone already counts as removed. With a uid, an object
	// of that name with another one is somebody else's and stays.
	Delete(ctx context.Context, id ProviderID, uid string) error

	// List returns our instances that carry all of tags; no tags means all of
	// ours. An instance that cannot be read is left out; a host that cannot
	// be asked is an error.
	List(ctx context.Context, tags Tags) ([]Instance, error)
}
