package wire_test

import (
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// Each name must be the go-libvirt method that puts the number on the wire.
func TestNamesAreTheClientLibrarysMethods(t *testing.T) {
	daemon, _, path := behind(t, func(procedure uint32, _ []byte) ([]byte, *wire.Error) {
		if procedure == wire.ProcAuthList || procedure == wire.ProcConnectOpen {
			return nil, nil
		}
		return nil, &wire.Error{Code: 1, Message: "not today"}
	})
	lv := reflect.ValueOf(client(t, path))
	checked := 0
	for procedure := uint32(1); procedure < 1<<16+8; procedure++ {
		name := wire.Name(procedure)
		if strings.HasPrefix(name, "procedure ") {
			continue
		}
		method := lv.MethodByName(name)
		if !method.IsValid() {
			t.Errorf("go-libvirt has no method %s", name)
			continue
		}
		before := daemon.Calls()[procedure]
		method.Call(arguments(method.Type()))
		if got := daemon.Calls()[procedure] - before; got != 1 {
			t.Errorf("%s made %d calls of procedure %d, want 1", name, got, procedure)
		}
		checked++
	}
	if checked < 60 {
		t.Errorf("only %d procedures have names", checked)
	}
}

// arguments gives a zero value for each parameter, and something to read or
// write where a stream is wanted.
func arguments(method reflect.Type) []reflect.Value {
	values := make([]reflect.Value, method.NumIn())
	for i := range values {
		in := method.In(i)
		values[i] = reflect.Zero(in)
		switch in {
		case reflect.TypeFor[io.Reader]():
			values[i] = reflect.ValueOf(strings.NewReader("text"))
		case reflect.TypeFor[io.Writer]():
			values[i] = reflect.ValueOf(io.Discard)
		}
	}
	return values
}

func TestNameOfAnUnlistedProcedureIsItsNumber(t *testing.T) {
	if got := wire.Name(9999); got != "procedure 9999" {
		t.Errorf("got %q", got)
	}
}
