#!/bin/sh
# Brings Squid up with the configuration that is already in place. Takes the
# port Squid listens on. Safe to repeat. Needs a network only when Squid is not
# installed yet. Its last line says how it ended: "egressproxy: ready" or
# "egressproxy: FAILED step STEP: REASON".
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
DEBIAN_FRONTEND=noninteractive
export PATH LC_ALL DEBIAN_FRONTEND

port=${1:?the port is missing}
conf=/etc/squid/squid.conf
users=/etc/squid/egressproxy-users
pid=/run/squid.pid
helper=/usr/lib/squid/basic_ncsa_auth

out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT

# The serial console is all that can be seen of a machine without a network.
say() {
	echo "egressproxy: $*"
	if [ -c /dev/console ]; then
		echo "egressproxy: $*" 2>/dev/null >/dev/console || :
	fi
}

fail() {
	say "FAILED step $1: $2"
	exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

step() {
	name=$1
	shift
	if ! "$@" >"$out" 2>&1; then
		cat "$out"
		fail "$name" "$(grep -v '^ *$' "$out" | tail -n 1)"
	fi
	cat "$out"
}

# confold keeps the configuration that is already there, so that Squid's first
# start uses it; the lock time-out outlasts a package run of the system's own.
install_squid() {
	if has apt-get; then
		apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 update &&
			apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
				-o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold install squid
	elif has dnf; then
		dnf -q -y install squid
	elif has apk; then
		apk add squid
	else
		echo "no package manager that this script knows (apt-get, dnf, apk)"
		return 1
	fi
}

# Other distributions name Squid's user "squid" and keep its helpers elsewhere.
adapt() {
	if ! id proxy >/dev/null 2>&1; then
		if has useradd; then
			useradd --system --gid proxy --no-create-home --home-dir /var/spool/squid --shell /usr/sbin/nologin proxy
		else
			adduser -S -D -H -h /var/spool/squid -G proxy proxy
		fi || return 1
		mkdir -p /var/log/squid /var/spool/squid
		chown -R proxy:proxy /var/log/squid /var/spool/squid || return 1
	fi
	if [ ! -x "$helper" ]; then
		for other in /usr/lib64/squid /usr/libexec/squid; do
			if [ -x "$other/basic_ncsa_auth" ]; then
				mkdir -p "${helper%/*}"
				ln -sf "$other/basic_ncsa_auth" "$helper"
			fi
		done
	fi
	if [ ! -x "$helper" ]; then
		echo "Squid's basic_ncsa_auth is not installed"
		return 1
	fi
}

# -k parse reports some errors with exit code 0.
parse() {
	squid -k parse -f "$conf" >"$out.parse" 2>&1
	code=$?
	grep -E 'ERROR|FATAL|unrecognized' "$out.parse" && code=1
	rm -f "$out.parse"
	return "$code"
}

enable_squid() {
	if [ -d /run/systemd/system ]; then
		systemctl enable squid
	elif has rc-update; then
		rc-update add squid default
	fi
}

restart_squid() {
	if [ -d /run/systemd/system ]; then
		systemctl restart squid
	elif has rc-service; then
		rc-service squid restart
	else
		stop_squid && squid -f "$conf"
	fi
}

stop_squid() {
	squid -k check -f "$conf" >/dev/null 2>&1 || return 0
	squid -k shutdown -f "$conf" || return 1
	tries=0
	while [ -e "$pid" ] && [ "$tries" -lt 30 ]; do
		sleep 1
		tries=$((tries + 1))
	done
	[ ! -e "$pid" ]
}

# Squid reads both files at its start: one that is newer than the running
# Squid's pid file has not been seen by it.
up_to_date() {
	squid -k check -f "$conf" >/dev/null 2>&1 || return 1
	[ -z "$(find -L "$conf" /etc/resolv.conf -newer "$pid" 2>/dev/null)" ]
}

# 0A is the state LISTEN.
listening() {
	grep -qi ":$(printf '%04X' "$port") [0-9A-F:]* 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

await_listener() {
	tries=0
	until listening; do
		if [ "$tries" -ge 60 ]; then
			echo "nothing listens on port $port after 60 s"
			grep -h FATAL /var/log/squid/cache.log 2>/dev/null | tail -n 1
			return 1
		fi
		sleep 1
		tries=$((tries + 1))
	done
}

[ -s "$conf" ] || fail files "$conf is missing or empty"
[ -s "$users" ] || fail files "$users is missing or empty"
has squid || step install install_squid
step adapt adapt
step parse parse
step enable enable_squid
sync # where systemd does not see to it, see syncBeforeSquid
up_to_date || step start restart_squid
step listen await_listener
say ready
