#!/bin/sh
# Has the QEMU guest agent running; installs it where the image lacks it, once
# cloud-init is done with everything else and the package manager is free.
unit=egressproxy-guest-agent

if command -v qemu-ga >/dev/null 2>&1; then
	# The unit waits for the host's end of its channel: nothing waits for it.
	systemctl --no-block enable --now qemu-guest-agent >/dev/null 2>&1 || {
		rc-update -q add qemu-guest-agent
		rc-service -q qemu-guest-agent start
	} >/dev/null 2>&1
	exit 0
fi

install='cloud-init status --wait >/dev/null 2>&1
if command -v apt-get >/dev/null 2>&1; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q -o DPkg::Lock::Timeout=300 update
	apt-get -qy -o DPkg::Lock::Timeout=300 --no-install-recommends install qemu-guest-agent
elif command -v dnf >/dev/null 2>&1; then
	dnf -qy install qemu-guest-agent
elif command -v zypper >/dev/null 2>&1; then
	zypper -nq install qemu-guest-agent
elif command -v apk >/dev/null 2>&1; then
	apk add -q qemu-guest-agent
fi
systemctl --no-block enable --now qemu-guest-agent 2>/dev/null || {
	rc-update -q add qemu-guest-agent
	rc-service -q qemu-guest-agent start
} 2>/dev/null
exit 0'

if command -v systemd-run >/dev/null 2>&1; then
	systemd-run --quiet --no-block --unit="$unit" /bin/sh -c "$install" >/dev/null 2>&1
else
	nohup /bin/sh -c "$install" >/dev/null 2>&1 &
fi
exit 0
