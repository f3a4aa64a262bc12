package kvm

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/beevik/etree"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// domainChange is what is to change in a domain's definition. A zero value
// changes nothing.
type domainChange struct {
	MemoryMiB int
	VCPUs     int
	CPUMode   string
	// ConsoleLog is the path of the serial console's log, "" for none.
	ConsoleLog *string
	// Description is the note, "" for the default one.
	Description *string
}

// editDomain changes a domain's definition and leaves everything else in it as
// it is, whether it is known here or not: a person's tuning, other tools'
// metadata, QEMU's own arguments. What contradicts the change is an error. A
// change of nothing gives the definition as it is.
func editDomain(definition string, change domainChange) (string, error) {
	if change == (domainChange{}) {
		return definition, nil
	}
	doc := etree.NewDocument()
	doc.ReadSettings.PreserveCData, doc.ReadSettings.PreserveDuplicateAttrs = true, true
	doc.WriteSettings.CanonicalText = true
	doc.WriteSettings.CanonicalAttrVal = true
	if err := doc.ReadFromString(definition); err != nil {
		return "", fmt.Errorf("reading the domain's definition: %w", err)
	}
	domain := doc.Root()
	if domain == nil || domain.Tag != "domain" || len(doc.ChildElements()) != 1 {
		return "", errors.New("reading the domain's definition: it is not one")
	}
	if change.MemoryMiB != 0 {
		if err := setMemory(domain, change.MemoryMiB); err != nil {
			return "", err
		}
	}
	if change.VCPUs != 0 {
		if err := setVCPUs(domain, change.VCPUs); err != nil {
			return "", err
		}
	}
	if change.CPUMode != "" {
		setCPUMode(domain, change.CPUMode)
	}
	if change.ConsoleLog != nil {
		if err := setConsoleLog(domain, *change.ConsoleLog); err != nil {
			return "", err
		}
	}
	if change.Description != nil {
		text := *change.Description
		if text == "" {
			text = defaultDescription
		}
		child(domain, "description", "name", "uuid", "title").SetText(text)
	}
	out, err := doc.WriteToString()
	if err != nil {
		return "", fmt.Errorf("writing the domain's definition: %w", err)
	}
	return out, nil
}

func setMemory(domain *etree.Element, mib int) error {
	refuse := func(cause, remedy string) error {
		return &egress.Fault{Kind: egress.ErrPermanent, Doing: "changing the memory", Attribute: "kvm.memory_mib", Cause: errors.New(cause), Remedy: remedy}
	}
	if domain.FindElement("./cpu/numa/cell") != nil {
		return refuse("the domain's definition divides its memory into NUMA cells (cpu/numa), so its size cannot be changed alone",
			"Change the cells with virsh edit, or take them out; then plan again.")
	}
	if limit := domain.SelectElement("maxMemory"); limit != nil {
		if most := scaledMiB(limit.Text(), limit.SelectAttrValue("unit", "")); most < mib {
			return refuse(fmt.Sprintf("the domain's definition lets its memory grow to %d MiB at most (maxMemory), which is less than %d", most, mib),
				"Raise maxMemory with virsh edit, or take it out; then plan again.")
		}
	}
	set := func(tag string) {
		e := child(domain, tag, "memory", "metadata", "uuid", "name")
		e.RemoveAttr("unit")
		e.CreateAttr("unit", "MiB")
		e.SetText(strconv.Itoa(mib))
	}
	set("memory")
	set("currentMemory")
	return nil
}

// numbers are those in a list of CPUs, such as "0-3,^2,8".
var numbers = regexp.MustCompile(`[0-9]+`)

func setVCPUs(domain *etree.Element, n int) error {
	if topology := domain.FindElement("./cpu/topology"); topology != nil {
		product := 1
		for _, name := range []string{"sockets", "dies", "clusters", "cores", "threads"} {
			if factor, err := strconv.Atoi(topology.SelectAttrValue(name, "1")); err == nil {
				product *= factor
			}
		}
		if product != n {
			return &egress.Fault{Kind: egress.ErrPermanent, Doing: "changing the number of CPUs", Attribute: "kvm.vcpus",
				Cause:  fmt.Errorf("the domain's definition has a CPU topology (cpu/topology) of %d CPUs, which does not go with %d", product, n),
				Remedy: "Change the topology with virsh edit, or take it out; then plan again."}
		}
	}
	for _, cell := range domain.FindElements("./cpu/numa/cell") {
		for _, number := range numbers.FindAllString(cell.SelectAttrValue("cpus", ""), -1) {
			if cpu, err := strconv.Atoi(number); err != nil || cpu >= n {
				return &egress.Fault{Kind: egress.ErrPermanent, Doing: "changing the number of CPUs", Attribute: "kvm.vcpus",
					Cause:  fmt.Errorf("the domain's definition gives CPU %s to a NUMA cell (cpu/numa), which does not go with %d CPUs", number, n),
					Remedy: "Change the cells with virsh edit, or take them out; then plan again."}
			}
		}
	}
	e := child(domain, "vcpu", "currentMemory", "memory", "uuid", "name")
	e.RemoveAttr("current")
	e.SetText(strconv.Itoa(n))
	if list := domain.FindElement("./vcpus"); list != nil { // says of each CPU whether it is plugged in
		domain.RemoveChild(list)
	}
	return nil
}

// setCPUMode changes the mode. A model and features belong to the mode they were
// chosen for.
func setCPUMode(domain *etree.Element, mode string) {
	cpu := child(domain, "cpu", "features", "os", "vcpu", "name")
	for _, attribute := range []string{"mode", "match", "check", "migratable"} {
		cpu.RemoveAttr(attribute)
	}
	cpu.CreateAttr("mode", mode)
	cpu.CreateAttr("check", "none")
	for _, tag := range []string{"model", "vendor", "feature"} {
		for _, e := range cpu.SelectElements(tag) {
			cpu.RemoveChild(e)
		}
	}
}

func setConsoleLog(domain *etree.Element, file string) error {
	serial := domain.FindElement("./devices/serial")
	if serial == nil {
		if file == "" {
			return nil
		}
		return &egress.Fault{Kind: egress.ErrPermanent, Doing: "logging the serial console", Attribute: "kvm.console_log",
			Cause:  errors.New("the machine has no serial console"),
			Remedy: "Give it one with virsh edit (<serial type='pty'/>), or leave kvm.console_log out."}
	}
	devices := []*etree.Element{serial}
	for _, console := range domain.FindElements("./devices/console") {
		// The console of this kind is the serial one, and repeats what it has.
		if target := console.SelectElement("target"); target == nil || target.SelectAttrValue("type", "serial") == "serial" {
			devices = append(devices, console)
		}
	}
	for _, device := range devices {
		if log := device.SelectElement("log"); log != nil {
			device.RemoveChild(log)
		}
	}
	if file != "" {
		log := etree.NewElement("log")
		log.CreateAttr("file", file)
		log.CreateAttr("append", "on")
		serial.InsertChildAt(0, log)
	}
	return nil
}

// child gives an element's child, made behind the first of after that is there
// where it is missing.
func child(of *etree.Element, tag string, after ...string) *etree.Element {
	if e := of.SelectElement(tag); e != nil {
		return e
	}
	e := etree.NewElement(tag)
	for _, name := range after {
		if previous := of.SelectElement(name); previous != nil {
			of.InsertChildAt(previous.Index()+1, e)
			return e
		}
	}
	of.AddChild(e)
	return e
}
