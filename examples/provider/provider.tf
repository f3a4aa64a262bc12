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
    }
  }

  default_tags = {
    team = "platform"
  }
}
