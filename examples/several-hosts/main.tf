# One proxy on each of three hypervisors, from one provider block. A host is an
# argument of the instance, so for_each goes over hosts as over anything else.

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

locals {
  hosts = toset(["hv1", "hv2", "edge"])
}

provider "egressproxy" {
  kvm = {
    hosts = {
      # On the office network: a key, and the host's own key pinned.
      hv1 = {
        uri = "qemu+ssh://deploy@hv1.example.com/system"
        ssh = {
          private_key_file = "~/.ssh/deploy"
          host_key         = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGVnwWzk3HmYVlYk0eZsJ7dFEoHZ8y0i4yJ2jvLhYQnM"
        }
      }

      # The agent's keys, and whatever ~/.ssh/known_hosts says of the host.
      hv2 = { uri = "qemu+ssh://deploy@hv2.example.com:2222/system" }

      # Only behind a bastion, which is who resolves the name.
      edge = {
        uri = "qemu+ssh://deploy@hv.edge.internal/system"
        ssh = {
          bastions = [{ host = "bastion.example.com", user = "jump" }]
        }
      }
    }

    machine_types = {
      small = { vcpus = 1, memory_mib = 512, disk_gib = 4 }
    }

    # Fetched once for each host, whatever the number of its instances.
    images = {
      debian12 = {
        source = "https://images.example.com/debian-12-genericcloud-amd64.qcow2"
        sha256 = var.image_sha256
      }
    }
  }
}

resource "egressproxy_instance" "egress" {
  for_each = local.hosts

  name = "egress-1"

  kvm = {
    host         = each.key
    machine_type = "small"
    image        = "debian12"
  }

  proxy = {
    clients = {
      ci = {
        password_wo         = var.client_password
        password_wo_version = 1
      }
    }
    policy = {
      allow_domains = [".example.org"]
    }
  }

  health_check = {
    target = "www.example.org:443"
  }
}

output "proxies" {
  value = { for host, proxy in egressproxy_instance.egress : host => proxy.http_url }
}
