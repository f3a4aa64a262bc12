#!/bin/sh
# Runs inside the unpacked Debian root: makes of it what a published Debian
# cloud image is, minus what only costs time on an emulated CPU. What
# cloud-init does with a seed stays as Debian ships it.
set -eu
export DEBIAN_FRONTEND=noninteractive

# A clone must get an identity of its own from cloud-init and systemd.
rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id /etc/resolv.conf
: >/etc/machine-id
echo localhost >/etc/hostname
printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >/etc/hosts
echo 'LABEL=cloudimg-rootfs / ext4 rw,noatime,errors=remount-ro 0 0' >/etc/fstab
passwd -q -l root

# The only source of configuration is the seed disk; without one, cloud-init
# must not wait for a metadata service. Left out are modules for things that
# are not here: every module is imported at each boot. The order is Debian's.
cat >/etc/cloud/cloud.cfg.d/90_lab.cfg <<'CFG'
datasource_list: [NoCloud, None]
ssh_genkeytypes: [ed25519]
locale: C.UTF-8
cloud_init_modules: [seed_random, bootcmd, write-files, growpart, resizefs, disk_setup, mounts,
  set_hostname, update_hostname, update_etc_hosts, ca-certs, users-groups, ssh]
cloud_config_modules: [set-passwords, apt-configure, ntp, timezone, runcmd]
cloud_final_modules: [package-update-upgrade-install, write-files-deferred, scripts-vendor, scripts-per-once,
  scripts-per-boot, scripts-per-instance, scripts-user, phone-home, final-message, power-state-change]
CFG

# Timers, housekeeping and logins that would compete with the boot for an
# emulated CPU.
systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
	e2scrub_all.timer e2scrub_reap.service fstrim.timer logrotate.timer man-db.timer \
	systemd-pstore.service systemd-update-utmp.service systemd-update-utmp-runlevel.service \
	systemd-binfmt.service getty@tty1.service serial-getty@ttyS0.service modprobe@drm.service \
	modprobe@loop.service modprobe@dm_mod.service modprobe@fuse.service cloud-init-hotplugd.socket
# Stock danted has no usable configuration and fails at every boot.
systemctl disable --quiet danted.service
# sshd starts with the first connection.
systemctl disable --quiet ssh.service
systemctl enable --quiet ssh.socket

# Drivers that udev loads for an emulated CPU or board and nothing here uses.
for module in kvm kvm_amd kvm_intel aesni_intel ghash_clmulni_intel sha512_ssse3 sha256_ssse3 sha1_ssse3 crct10dif_pclmul \
	crc32_pclmul powernow_k8 acpi_cpufreq iTCO_wdt i2c_i801 lpc_ich psmouse pcspkr joydev floppy serio_raw; do
	echo "blacklist $module"
done >/etc/modprobe.d/lab.conf

# An initrd with the drivers of the virtual machine alone, not of all machines.
echo MODULES=list >/etc/initramfs-tools/conf.d/lab.conf
printf '%s\n' virtio_pci virtio_blk virtio_scsi >>/etc/initramfs-tools/modules
update-initramfs -u -k all >/dev/null

kernel=$(basename /boot/vmlinuz-*)
cat >/boot/extlinux.conf <<CFG
default linux
timeout 0
prompt 0
label linux
  kernel /boot/$kernel
  append initrd=/boot/initrd.img-${kernel#vmlinuz-} root=LABEL=cloudimg-rootfs ro console=ttyS0 loglevel=4 mitigations=off
CFG
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/log/*.log /var/log/apt/*
