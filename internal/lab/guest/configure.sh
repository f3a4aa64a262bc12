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
cloud_init_modules: [seed_random, bootcmd, write-files, disk_setup, mounts,
  set_hostname, update_hostname, update_etc_hosts, ca-certs, users-groups, ssh]
cloud_config_modules: [set-passwords, apt-configure, ntp, timezone, runcmd]
cloud_final_modules: [package-update-upgrade-install, write-files-deferred, scripts-vendor, scripts-per-once,
  scripts-per-boot, scripts-per-instance, scripts-user, phone-home, final-message, power-state-change]
CFG

# The generator that decides whether cloud-init runs need not search.
echo 'policy: enabled' >/etc/cloud/ds-identify.cfg

# What cloud-init's growpart and resizefs do, without a Python and a dozen
# shells: the partition, then the file system, grow to the end of the disk.
cat >/etc/systemd/system/grow-root.service <<'UNIT'
[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service
Before=local-fs.target shutdown.target
Conflicts=shutdown.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c "echo ,+ | sfdisk --quiet --no-reread --no-tell-kernel -N 1 /dev/vda && partx --update --nr 1 /dev/vda"
ExecStart=/lib/systemd/systemd-growfs /
[Install]
WantedBy=local-fs.target
UNIT
systemctl enable --quiet grow-root.service

# Timers, housekeeping and logins that would compete with the boot for an
# emulated CPU.
systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
	e2scrub_all.timer e2scrub_reap.service fstrim.timer logrotate.timer man-db.timer \
	systemd-pstore.service systemd-update-utmp.service systemd-update-utmp-runlevel.service \
	systemd-binfmt.service getty@tty1.service serial-getty@ttyS0.service modprobe@drm.service \
	modprobe@loop.service modprobe@dm_mod.service modprobe@fuse.service cloud-init-hotplugd.socket
for generator in cryptsetup integritysetup veritysetup gpt-auto hibernate-resume rc-local system-update; do
	mkdir -p /etc/systemd/system-generators
	ln -s /dev/null "/etc/systemd/system-generators/systemd-$generator-generator"
done
# On one CPU, the later stages of cloud-init would slow the proxy's start.
for stage in config final; do
	mkdir -p "/etc/systemd/system/cloud-$stage.service.d"
	printf '[Service]\nNice=15\n' >"/etc/systemd/system/cloud-$stage.service.d/lab.conf"
done
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
printf 'MODULES=list\nCOMPRESS=gzip\n' >/etc/initramfs-tools/conf.d/lab.conf
printf '%s\n' virtio_pci virtio_blk virtio_scsi sd_mod >>/etc/initramfs-tools/modules
# With so few, the kernel's own device nodes do; udev starts with the system.
cat >/etc/initramfs-tools/hooks/lab <<'HOOK'
#!/bin/sh
[ "${1-}" = prereqs ] || rm -f "$DESTDIR"/scripts/init-*/udev
HOOK
chmod 755 /etc/initramfs-tools/hooks/lab
update-initramfs -u -k all >/dev/null

kernel=$(basename /boot/vmlinuz-*)
cat >/boot/extlinux.conf <<CFG
default linux
timeout 0
prompt 0
label linux
  kernel /boot/$kernel
  append initrd=/boot/initrd.img-${kernel#vmlinuz-} root=LABEL=cloudimg-rootfs ro console=ttyS0 loglevel=4 mitigations=off noxsave tsc=reliable audit=0 fsck.mode=skip rcupdate.rcu_expedited=1
CFG
rm -rf /etc/dpkg/dpkg.cfg.d/99mmdebstrap /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/log/*.log /var/log/apt/*
