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
      lab = { uri = "qemu:///system" }
      hv1 = {
        uri = "qemu+ssh://root@hv1.example.com/system"
        ssh = {
          private_key_file = "~/.ssh/id_ed25519"
          known_hosts_file = "~/.ssh/known_hosts"
        }
      }
    }
    machine_types = {
      small = { vcpus = 1, memory_mib = 512, disk_gib = 4 }
    }
    images = {
      debian12 = {
        source = "https://images.example.com/debian-12-genericcloud-amd64.qcow2"
        sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
      }
      # Compressed, with its checksum from the publisher's list.
      fedora = {
        source = "https://images.example.com/fedora-cloud.x86_64.qcow2.xz"
        sha256 = "https://images.example.com/SHA256SUMS"
      }
      # In the storage pool already.
      golden = { source = "volume:golden-2026-01.qcow2" }
    }
  }

  default_tags = {
    team = "platform"
  }
}
