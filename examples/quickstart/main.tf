# One egress proxy on one hypervisor. "make quickstart" applies this to a
# private hypervisor that it starts; with other values for the variables it
# applies to any host that libvirt runs on:
#
#   terraform apply -var libvirt_uri=qemu:///system -var image_path=debian-12.qcow2 -var image_sha256=...

terraform {
  required_version = ">= 1.11"
  required_providers {
    egressproxy = {
      source = "registry.terraform.io/egressproxy/egressproxy"
    }
  }
}

variable "libvirt_uri" {
  description = "The libvirt daemon's URI."
  type        = string
  default     = "qemu:///system"
}

variable "image_path" {
  description = "A Debian 12 cloud image: a local file or a URL."
  type        = string
}

variable "image_sha256" {
  description = "The image's SHA-256 checksum."
  type        = string
}

variable "network" {
  description = "The libvirt network the proxy is on."
  type        = string
  default     = "default"
}

variable "pool" {
  description = "The libvirt storage pool for the proxy's disks."
  type        = string
  default     = "default"
}

variable "virt_type" {
  description = "kvm, or qemu where the host has no hardware virtualisation; null chooses."
  type        = string
  default     = null
}

variable "client_password" {
  description = "The password of the proxy's client; it is stored nowhere."
  type        = string
  sensitive   = true
  ephemeral   = true
}

provider "egressproxy" {
  kvm = {
    hosts         = { lab = { uri = var.libvirt_uri } }
    machine_types = { small = { vcpus = 1, memory_mib = 512, disk_gib = 4 } }
    images        = { debian12 = { source = var.image_path, sha256 = var.image_sha256 } }
  }
}

resource "egressproxy_instance" "quickstart" {
  name = "quickstart-egress-1"

  kvm = {
    host         = "lab"
    machine_type = "small"
    image        = "debian12"
    pool         = var.pool
    network      = var.network
    virt_type    = var.virt_type
  }

  proxy = {
    http_port = 3128
    clients = {
      quickstart = { password_wo = var.client_password, password_wo_version = 1 }
    }
    policy = {
      default       = "deny"
      allow_domains = ["www.allowed.test"]
      allow_ports   = [80, 443]
    }
  }

  # The apply succeeds when this is reachable through the proxy.
  health_check = { target = "www.allowed.test:80" }

  tags = { purpose = "quickstart" }
}

output "http_url" {
  description = "The proxy's URL, without credentials."
  value       = egressproxy_instance.quickstart.http_url
}

output "address" {
  description = "The proxy's address."
  value       = egressproxy_instance.quickstart.address
}
