package connection

import (
	"os"
	"testing"
)

// TestMain hides the agent of whoever runs the tests.
func TestMain(m *testing.M) {
	if err := os.Unsetenv("SSH_AUTH_SOCK"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
