# A proxy with a foot in two networks: clients reach it at a fixed address on a
# host's bridge, and the traffic leaves through a network of its own. No DHCP
# server is needed on the bridge.

terraform {
  required_providers {
    egressproxy = {
      source = "egressproxy/egressproxy"
    }
  }
}

variable "client_password" {
  type      = string
  ephemeral = true
}

variable "image_sha256" {
  type = string
}

provider "egressproxy" {
  kvm = {
    hosts = {
      hv1 = { uri = "qemu+ssh://root@hv1.example.com/system" }
    }
    machine_types = {
      small = { vcpus = 1, memory_mib = 512, disk_gib = 4 }
    }
    images = {
      debian12 = {
        source = "https://images.example.com/debian-12-genericcloud-amd64.qcow2"
        sha256 = var.image_sha256
      }
    }
  }
}

resource "egressproxy_instance" "office" {
  name        = "office-egress"
  description = "Egress of the office network; ask the platform team."

  kvm = {
    host         = "hv1"
    machine_type = "small"
    image        = "debian12"
    console_log  = "/var/log/egress/office-egress.log"

    interfaces = [
      # The first is the one that clients dial.
      {
        bridge    = "br0"
        addresses = ["192.0.2.10/24", "2001:db8:2::10/64"]
      },
      {
        network     = "uplink"
        addresses   = ["198.51.100.10/24"]
        gateways    = ["198.51.100.1"]
        nameservers = ["198.51.100.1"]
      },
    ]
  }

  proxy = {
    clients = {
      office = {
        password_wo         = var.client_password
        password_wo_version = 1
      }
    }
    policy = {
      default     = "allow"
      allow_ports = [443]
    }
  }

  health_check = {
    target = "www.example.org:443"
  }

  deletion_protection = true
}
