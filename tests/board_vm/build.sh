#!/bin/sh
# Debian 12 as an image for QEMU: build.sh DIRECTORY. Needs root, mmdebstrap, e2fsprogs and a Debian mirror.
set -eu
out=$1
mirror=${MIRROR:-http://deb.debian.org/debian}
arch=${ARCH:-amd64} # arm64 needs qemu-user-static and binfmt-support beside
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$out"

# An initial RAM disk with what the disk needs, and not with all drivers: TCG would unpack these for half a minute.
cat >"$out/before.sh" <<'END'
mkdir -p "$1/etc/initramfs-tools/conf.d"
echo MODULES=list >"$1/etc/initramfs-tools/conf.d/board"
printf '%s\n' virtio_pci virtio_blk ext4 >"$1/etc/initramfs-tools/modules"
END

# A shell on the console hvc0 for the tests, an ordinary user with sudo, and the network of QEMU.
cat >"$out/after.sh" <<'END'
cat >"$1/etc/systemd/system/tests.service" <<'UNIT'
[Service]
ExecStart=/bin/sh -c 'stty raw -echo; echo; echo READY; exec sh'
StandardInput=tty
StandardOutput=tty
StandardError=tty
TTYPath=/dev/hvc0
Restart=always
WorkingDirectory=/root
[Install]
WantedBy=multi-user.target
UNIT
mkdir -p "$1/mnt/payload" "$1/boot/firmware"
printf '/dev/vda / ext4 errors=remount-ro 0 1\n/dev/vdb /mnt/payload ext4 ro 0 0\n' >"$1/etc/fstab"
printf '[Match]\nName=e*\n[Network]\nDHCP=ipv4\n' >"$1/etc/systemd/network/qemu.network"
# As on a Raspberry Pi: install-board.sh --boot writes into it.
echo '# config.txt' >"$1/boot/firmware/config.txt"
echo board >"$1/etc/hostname"
echo 127.0.0.1 localhost board >"$1/etc/hosts"
chroot "$1" useradd --create-home --shell /bin/bash lab
echo 'lab ALL=(ALL) NOPASSWD: ALL' >"$1/etc/sudoers.d/lab"
chroot "$1" systemctl enable tests.service systemd-networkd.service
chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer man-db.timer
END
chmod +x "$out/before.sh" "$out/after.sh"

mmdebstrap --architectures="$arch" --mode=root --variant=minbase --format=directory \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --essential-hook="$out/before.sh" --customize-hook="$out/after.sh" \
    --include="linux-image-$arch,initramfs-tools,zstd,systemd-sysv,udev,dbus,kmod,procps,sudo,polkitd,i2c-tools,usbutils" \
    --include="python3,python3-venv,python3-zmq,python3-smbus2,python3-serial,python3-hatchling" \
    bookworm "$root" "$mirror"

cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
cp "$root"/boot/initrd.img-* "$out/initrd"
rm -f "$out/disk.new"
mke2fs -q -t ext4 -L board -d "$root" "$out/disk.new" 3G
mv "$out/disk.new" "$out/disk.img"
