# A proxy that somebody made with virt-install, virsh or another tool, taken
# over as it stands: the machine is neither restarted nor changed.

terraform {
  required_providers {
    egressproxy = {
      source = "egressproxy/egressproxy"
    }
  }
}

provider "egressproxy" {
  kvm = {
    hosts = {
      hv1 = { uri = "qemu+ssh://root@hv1.example.com/system" }
    }
  }
}

import {
  to = egressproxy_instance.old
  id = "kvm://hv1/squid-2019"
}

# Written by: terraform plan -generate-config-out=old.tf
resource "egressproxy_instance" "old" {
  name = "squid-2019"

  kvm = {
    host       = "hv1"
    vcpus      = 2
    memory_mib = 2048
    disk_gib   = 20
    pool       = "default"
    network    = "default"
    autostart  = true
  }

  running             = true
  deletion_protection = true
}
