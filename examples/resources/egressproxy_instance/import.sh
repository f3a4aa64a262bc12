# kvm://HOST/NAME: the host's name in the provider block, and the instance's.
terraform import egressproxy_instance.ci kvm://hv1/ci-egress-1
