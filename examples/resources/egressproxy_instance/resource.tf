variable "ci_password" {
  type      = string
  ephemeral = true
}

# A proxy that the client "ci" reaches GitHub and example.org through, and
# nothing else.
resource "egressproxy_instance" "ci" {
  name = "ci-egress-1"

  kvm = {
    host         = "hv1"
    machine_type = "small"
    image        = "debian12"
  }

  proxy = {
    clients = {
      ci = {
        password_wo         = var.ci_password
        password_wo_version = 1
        allow_domains       = [".github.com"]
      }
    }
    policy = {
      allow_domains = ["example.org"]
    }
  }

  tags = {
    env = "prod"
  }
}

# A machine with sizes of its own and more set-up than the proxy.
resource "egressproxy_instance" "sandbox" {
  name = "sandbox-egress-1"

  kvm = {
    host       = "lab"
    vcpus      = 2
    memory_mib = 1024
    disk_gib   = 8
    image      = "debian12"
    network    = "sandbox"
  }

  proxy = {
    http_port = 8080
    clients = {
      agents = {
        password_wo         = var.ci_password
        password_wo_version = 1
      }
    }
    policy = {
      default     = "allow"
      allow_ports = [443]
    }
  }

  user_data = <<-EOT
    #cloud-config
    timezone: Europe/Berlin
  EOT

  health_check = {
    target = "example.org:443"
  }

  timeouts = {
    create = "20m"
  }
}

output "ci_proxy" {
  value = egressproxy_instance.ci.http_url
}
