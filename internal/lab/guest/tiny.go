package guest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// Kind is what a tiny image does.
type Kind string

// The kinds of tiny images.
const (
	// TinyIdle prints a line and then does nothing for ever. It takes no
	// address and answers no ACPI request.
	TinyIdle Kind = "idle"
	// TinyPowersOff prints a line and powers the machine off about a second
	// later.
	TinyPowersOff Kind = "powers-off"
	// TinyPanics prints what Linux prints when it finds no root file system,
	// and halts.
	TinyPanics Kind = "panics"
)

// lines is what each kind prints on the first serial port.
var lines = map[Kind]string{
	TinyIdle:      "lab guest: idle for ever",
	TinyPowersOff: "lab guest: powering off",
	TinyPanics:    "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)",
}

// Line returns what an image of the kind prints, without the line end.
func (k Kind) Line() string { return lines[k] }

// tinySize is the size of a tiny image in bytes. A BIOS reads nothing from a
// disk smaller than a cylinder or two of 16 heads and 63 sectors.
const tinySize = 1 << 20

// Tiny writes a raw disk image of the kind into dir and returns its path. The
// image boots on QEMU's q35 machine with BIOS firmware within a second or two,
// and is nothing but a boot sector.
func Tiny(kind Kind, dir string) (path string, err error) {
	sector, err := bootSector(kind)
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "tiny-"+string(kind)+".raw")
	if err := os.WriteFile(path, sector, 0o644); err != nil {
		return "", fmt.Errorf("writing a tiny image: %w", err)
	}
	if err := os.Truncate(path, tinySize); err != nil {
		return "", fmt.Errorf("writing a tiny image: %w", err)
	}
	return path, nil
}

// MarkedTiny writes an image like Tiny's that carries a mark of at most 512
// bytes behind the disk's first track, so that another mark makes it another
// image, and gives its checksum.
func MarkedTiny(kind Kind, mark, dir string) (path, sha256sum string, err error) {
	if path, err = Tiny(kind, dir); err != nil {
		return "", "", err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("marking a tiny image: %w", err)
	}
	content = append(content, fmt.Appendf(nil, "%-512s", mark)...)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return "", "", fmt.Errorf("marking a tiny image: %w", err)
	}
	sum := sha256.Sum256(content)
	return path, hex.EncodeToString(sum[:]), nil
}

// Where things are, for the machine code below.
const (
	loadAddress = 0x7c00 // where a BIOS puts the boot sector
	com1        = 0x3f8  // the first serial port: data register
	// The ACPI PM1a control register as QEMU's firmware places it on q35:
	// PMBASE 0x600 + 4. Writing SLP_EN (bit 13) with sleep type 0 is S5, off.
	pm1aControl = 0x604
	sleepEnable = 0x2000
	// The tick count of the BIOS data area, 18.2 a second.
	ticks = 0x46c
)

// bootSector assembles the 512 bytes that a BIOS loads and jumps to, in 16-bit
// real mode; opcodes as in Intel's Software Developer's Manual, volume 2.
func bootSector(kind Kind) ([]byte, error) {
	line, ok := lines[kind]
	if !ok {
		return nil, fmt.Errorf("no tiny image is called %q", kind)
	}
	var code bytes.Buffer
	emit := func(b ...byte) { code.Write(b) }
	word := func(v int) []byte { return binary.LittleEndian.AppendUint16(nil, uint16(v)) }

	emit(0xfa)                          // cli
	emit(0x31, 0xc0)                    // xor ax, ax
	emit(0x8e, 0xd8)                    // mov ds, ax
	emit(0xfc)                          // cld
	emit(0xbe)                          // mov si, TEXT
	text := code.Len()                  // its address is known at the end
	emit(0, 0)                          //
	next := code.Len()                  //
	emit(0xba)                          // mov dx, COM1 + 5
	emit(word(com1 + 5)...)             // the line status register
	emit(0xec)                          // in al, dx
	emit(0xa8, 0x20)                    // test al, 0x20: may it take a byte?
	emit(0x74, 0xfb)                    // jz back to "in"
	emit(0xac)                          // lodsb
	emit(0x84, 0xc0)                    // test al, al
	emit(0x74, 6)                       // jz over the next three
	emit(0xba)                          // mov dx, COM1
	emit(word(com1)...)                 //
	emit(0xee)                          // out dx, al
	emit(0xeb, byte(next-code.Len()-2)) // jmp NEXT

	if kind == TinyPowersOff {
		emit(0xfb)                 // sti: the timer ticks by interrupt
		emit(0x8b, 0x1e)           // mov bx, [ticks]
		emit(word(ticks)...)       //
		emit(0x83, 0xc3, 18)       // add bx, 18
		emit(0xf4)                 // hlt
		emit(0x3b, 0x1e)           // cmp bx, [ticks]
		emit(word(ticks)...)       //
		emit(0x75, 0xf9)           // jne back to "hlt"
		emit(0xba)                 // mov dx, PM1a control
		emit(word(pm1aControl)...) //
		emit(0xb8)                 // mov ax, SLP_EN
		emit(word(sleepEnable)...) //
		emit(0xef)                 // out dx, ax
		emit(0xfa)                 // cli
	}
	emit(0xf4)       // hlt
	emit(0xeb, 0xfd) // jmp back to "hlt"

	sector := code.Bytes()
	copy(sector[text:], word(loadAddress+len(sector)))
	sector = append(sector, line+"\r\n\x00"...)
	const signature = 510 // where a BIOS looks for 0x55 0xaa
	if len(sector) > signature {
		return nil, fmt.Errorf("the tiny image %q has %d bytes too many", kind, len(sector)-signature)
	}
	sector = append(sector, make([]byte, signature-len(sector))...)
	return append(sector, 0x55, 0xaa), nil
}
