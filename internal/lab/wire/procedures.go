package wire

import "fmt"

// Numbers of the remote procedures that this provider and its tests meet, as
// libvirt's src/remote/remote_protocol.x assigns them. They never change.
const (
	ProcConnectOpen                   uint32 = 1
	ProcConnectClose                  uint32 = 2
	ProcConnectGetVersion             uint32 = 4
	ProcNodeGetInfo                   uint32 = 6
	ProcConnectGetCapabilities        uint32 = 7
	ProcDomainCreate                  uint32 = 9
	ProcDomainDefineXML               uint32 = 11
	ProcDomainDestroy                 uint32 = 12
	ProcDomainGetXMLDesc              uint32 = 14
	ProcDomainGetAutostart            uint32 = 15
	ProcDomainGetInfo                 uint32 = 16
	ProcDomainLookupByName            uint32 = 23
	ProcDomainLookupByUUID            uint32 = 24
	ProcDomainReboot                  uint32 = 27
	ProcDomainResume                  uint32 = 28
	ProcDomainSetAutostart            uint32 = 29
	ProcDomainShutdown                uint32 = 33
	ProcDomainSuspend                 uint32 = 34
	ProcDomainUndefine                uint32 = 35
	ProcNetworkCreate                 uint32 = 39
	ProcNetworkGetXMLDesc             uint32 = 43
	ProcNetworkLookupByName           uint32 = 46
	ProcConnectGetHostname            uint32 = 59
	ProcConnectSupportsFeature        uint32 = 60
	ProcAuthList                      uint32 = 66
	ProcAuthPolkit                    uint32 = 70
	ProcStoragePoolCreate             uint32 = 78
	ProcStoragePoolRefresh            uint32 = 83
	ProcStoragePoolLookupByName       uint32 = 84
	ProcStoragePoolLookupByVolume     uint32 = 86
	ProcStoragePoolGetInfo            uint32 = 87
	ProcStoragePoolGetXMLDesc         uint32 = 88
	ProcStoragePoolListVolumes        uint32 = 92
	ProcStorageVolCreateXML           uint32 = 93
	ProcStorageVolDelete              uint32 = 94
	ProcStorageVolLookupByName        uint32 = 95
	ProcStorageVolLookupByKey         uint32 = 96
	ProcStorageVolLookupByPath        uint32 = 97
	ProcStorageVolGetInfo             uint32 = 98
	ProcStorageVolGetXMLDesc          uint32 = 99
	ProcStorageVolGetPath             uint32 = 100
	ProcStorageVolCreateXMLFrom       uint32 = 125
	ProcDomainIsActive                uint32 = 150
	ProcDomainIsPersistent            uint32 = 151
	ProcNetworkIsActive               uint32 = 152
	ProcStoragePoolIsActive           uint32 = 154
	ProcConnectGetLibVersion          uint32 = 157
	ProcDomainAttachDeviceFlags       uint32 = 160
	ProcDomainDetachDeviceFlags       uint32 = 161
	ProcStorageVolWipe                uint32 = 165
	ProcDomainUpdateDeviceFlags       uint32 = 174
	ProcDomainCreateWithFlags         uint32 = 196
	ProcDomainSetVcpusFlags           uint32 = 199
	ProcDomainOpenConsole             uint32 = 201
	ProcDomainSetMemoryFlags          uint32 = 204
	ProcStorageVolUpload              uint32 = 208
	ProcStorageVolDownload            uint32 = 209
	ProcDomainGetState                uint32 = 212
	ProcDomainGetControlInfo          uint32 = 229
	ProcDomainUndefineFlags           uint32 = 231
	ProcDomainDestroyFlags            uint32 = 234
	ProcDomainBlockResize             uint32 = 251
	ProcDomainShutdownFlags           uint32 = 258
	ProcStorageVolResize              uint32 = 260
	ProcDomainSetMetadata             uint32 = 264
	ProcDomainGetMetadata             uint32 = 265
	ProcConnectListAllDomains         uint32 = 273
	ProcConnectListAllStoragePools    uint32 = 281
	ProcStoragePoolListAllVolumes     uint32 = 282
	ProcConnectListAllNetworks        uint32 = 283
	ProcNetworkGetDhcpLeases          uint32 = 341
	ProcConnectGetDomainCapabilities  uint32 = 342
	ProcConnectGetAllDomainStats      uint32 = 344
	ProcDomainDefineXMLFlags          uint32 = 350
	ProcDomainInterfaceAddresses      uint32 = 353
	ProcStorageVolGetInfoFlags        uint32 = 378
	ProcStoragePoolLookupByTargetPath uint32 = 391

	// ProcQEMUDomainAgentCommand belongs to libvirt's QEMU program, which
	// numbers its procedures from 1 again (src/remote/qemu_protocol.x).
	ProcQEMUDomainAgentCommand = qemuOffset + 3
)

// qemuOffset is added to the numbers of the QEMU program's procedures, so that
// one number names a procedure of either program.
const qemuOffset uint32 = 1 << 16

// names gives each procedure the name of its go-libvirt method.
var names = map[uint32]string{
	ProcConnectOpen:                   "ConnectOpen",
	ProcConnectClose:                  "ConnectClose",
	ProcConnectGetVersion:             "ConnectGetVersion",
	ProcNodeGetInfo:                   "NodeGetInfo",
	ProcConnectGetCapabilities:        "ConnectGetCapabilities",
	ProcDomainCreate:                  "DomainCreate",
	ProcDomainDefineXML:               "DomainDefineXML",
	ProcDomainDestroy:                 "DomainDestroy",
	ProcDomainGetXMLDesc:              "DomainGetXMLDesc",
	ProcDomainGetAutostart:            "DomainGetAutostart",
	ProcDomainGetInfo:                 "DomainGetInfo",
	ProcDomainLookupByName:            "DomainLookupByName",
	ProcDomainLookupByUUID:            "DomainLookupByUUID",
	ProcDomainReboot:                  "DomainReboot",
	ProcDomainResume:                  "DomainResume",
	ProcDomainSetAutostart:            "DomainSetAutostart",
	ProcDomainShutdown:                "DomainShutdown",
	ProcDomainSuspend:                 "DomainSuspend",
	ProcDomainUndefine:                "DomainUndefine",
	ProcNetworkCreate:                 "NetworkCreate",
	ProcNetworkGetXMLDesc:             "NetworkGetXMLDesc",
	ProcNetworkLookupByName:           "NetworkLookupByName",
	ProcConnectGetHostname:            "ConnectGetHostname",
	ProcConnectSupportsFeature:        "ConnectSupportsFeature",
	ProcAuthList:                      "AuthList",
	ProcAuthPolkit:                    "AuthPolkit",
	ProcStoragePoolCreate:             "StoragePoolCreate",
	ProcStoragePoolRefresh:            "StoragePoolRefresh",
	ProcStoragePoolLookupByName:       "StoragePoolLookupByName",
	ProcStoragePoolLookupByVolume:     "StoragePoolLookupByVolume",
	ProcStoragePoolGetInfo:            "StoragePoolGetInfo",
	ProcStoragePoolGetXMLDesc:         "StoragePoolGetXMLDesc",
	ProcStoragePoolListVolumes:        "StoragePoolListVolumes",
	ProcStorageVolCreateXML:           "StorageVolCreateXML",
	ProcStorageVolDelete:              "StorageVolDelete",
	ProcStorageVolLookupByName:        "StorageVolLookupByName",
	ProcStorageVolLookupByKey:         "StorageVolLookupByKey",
	ProcStorageVolLookupByPath:        "StorageVolLookupByPath",
	ProcStorageVolGetInfo:             "StorageVolGetInfo",
	ProcStorageVolGetXMLDesc:          "StorageVolGetXMLDesc",
	ProcStorageVolGetPath:             "StorageVolGetPath",
	ProcStorageVolCreateXMLFrom:       "StorageVolCreateXMLFrom",
	ProcDomainIsActive:                "DomainIsActive",
	ProcDomainIsPersistent:            "DomainIsPersistent",
	ProcNetworkIsActive:               "NetworkIsActive",
	ProcStoragePoolIsActive:           "StoragePoolIsActive",
	ProcConnectGetLibVersion:          "ConnectGetLibVersion",
	ProcDomainAttachDeviceFlags:       "DomainAttachDeviceFlags",
	ProcDomainDetachDeviceFlags:       "DomainDetachDeviceFlags",
	ProcStorageVolWipe:                "StorageVolWipe",
	ProcDomainUpdateDeviceFlags:       "DomainUpdateDeviceFlags",
	ProcDomainCreateWithFlags:         "DomainCreateWithFlags",
	ProcDomainSetVcpusFlags:           "DomainSetVcpusFlags",
	ProcDomainOpenConsole:             "DomainOpenConsole",
	ProcDomainSetMemoryFlags:          "DomainSetMemoryFlags",
	ProcStorageVolUpload:              "StorageVolUpload",
	ProcStorageVolDownload:            "StorageVolDownload",
	ProcDomainGetState:                "DomainGetState",
	ProcDomainGetControlInfo:          "DomainGetControlInfo",
	ProcDomainUndefineFlags:           "DomainUndefineFlags",
	ProcDomainDestroyFlags:            "DomainDestroyFlags",
	ProcDomainBlockResize:             "DomainBlockResize",
	ProcDomainShutdownFlags:           "DomainShutdownFlags",
	ProcStorageVolResize:              "StorageVolResize",
	ProcDomainSetMetadata:             "DomainSetMetadata",
	ProcDomainGetMetadata:             "DomainGetMetadata",
	ProcConnectListAllDomains:         "ConnectListAllDomains",
	ProcConnectListAllStoragePools:    "ConnectListAllStoragePools",
	ProcStoragePoolListAllVolumes:     "StoragePoolListAllVolumes",
	ProcConnectListAllNetworks:        "ConnectListAllNetworks",
	ProcNetworkGetDhcpLeases:          "NetworkGetDhcpLeases",
	ProcConnectGetDomainCapabilities:  "ConnectGetDomainCapabilities",
	ProcConnectGetAllDomainStats:      "ConnectGetAllDomainStats",
	ProcDomainDefineXMLFlags:          "DomainDefineXMLFlags",
	ProcDomainInterfaceAddresses:      "DomainInterfaceAddresses",
	ProcStorageVolGetInfoFlags:        "StorageVolGetInfoFlags",
	ProcStoragePoolLookupByTargetPath: "StoragePoolLookupByTargetPath",
	ProcQEMUDomainAgentCommand:        "QEMUDomainAgentCommand",
}

// Name gives the name that go-libvirt's method for the procedure has, or the
// number in words for a procedure that the table does not hold.
func Name(procedure uint32) string {
	if name, ok := names[procedure]; ok {
		return name
	}
	return fmt.Sprintf("procedure %d", procedure)
}
