#!/bin/sh
# Makes image.qcow2 of rootfs.tar, both in the directory given. Runs as root in
# mount and PID namespaces of its own, so that no mount and no loop device
# survives it. Lines that begin with "step: " tell the caller how far it is.
set -eu
work=$1
disk=$work/disk.raw
mnt=$work/root
start=1048576 # bytes before the partition: 2048 sectors, as every partitioning tool leaves
size=$((2 * 1024 * 1024 * 1024))

mount --make-rprivate /
mkdir -p "$mnt"

echo "step: making the disk"
truncate -s $size "$disk"
echo 'label: dos
2048,,L,*' | sfdisk --quiet "$disk"
# The boot loader reads neither 64-bit block numbers nor newer features.
mkfs.ext4 -q -F -L cloudimg-rootfs -O '^64bit,^metadata_csum' -m 0 -E "offset=$start,lazy_itable_init=0,lazy_journal_init=0" \
	"$disk" $(((size - start) / 1024))k
mount -o "loop,offset=$start,sizelimit=$((size - start))" "$disk" "$mnt"

tar -C "$mnt" -xf "$work/rootfs.tar"

echo "step: configuring Debian"
mount --bind /dev "$mnt/dev"
mount -t proc proc "$mnt/proc"
mount -t sysfs sysfs "$mnt/sys"
mount -t tmpfs tmpfs "$mnt/tmp"
cp "$work/configure.sh" "$mnt/tmp/configure.sh"
chroot "$mnt" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C /bin/sh /tmp/configure.sh
umount "$mnt/tmp" "$mnt/sys" "$mnt/proc" "$mnt/dev"

echo "step: installing the boot loader"
mkdir -p "$mnt/boot"
extlinux --install "$mnt/boot" 2>&1
umount "$mnt"
dd if=/usr/lib/syslinux/mbr/mbr.bin of="$disk" bs=440 count=1 conv=notrunc status=none

echo "step: compressing the image"
qemu-img convert -f raw -O qcow2 -c -o compression_type=zstd "$disk" "$work/image.qcow2"
