#!/bin/sh
# Installs powerd on a sensor board (Debian 12 or newer: BeagleBone, Raspberry Pi OS) so that it runs unattended.
# Can be run again at any time: what is in place stays, and an edited configuration is never overwritten.
set -eu

usage() {
    cat <<'END'
usage: install-board.sh [--dry-run] [--root DIR] [--wheels DIR] [--boot] [--no-start]

  --dry-run     say what would be done and change nothing
  --root DIR    lay the files out below DIR (an image that is being built); nothing of the running system is touched
  --wheels DIR  install from wheels in DIR (powerd's own and those of pyzmq, smbus2, pyserial, shtab) instead of Debian's
                packages; make them with: pip download --only-binary :all: 'powerd[board]' or pip wheel
  --boot        also set the I2C bus to 400 kHz in the boot configuration of a BeagleBone or a Raspberry Pi
  --no-start    do not enable and start the service

Needs root, apt-get and Debian's python3-venv; with --wheels no network.
END
}

say() { printf '%s\n' "$*"; }
fail() { printf 'install-board.sh: %s\n' "$*" >&2; exit 2; }

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
dry='' root='' wheels='' boot='' start=yes

while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) dry=yes ;;
        --root) [ $# -ge 2 ] || fail "--root: which directory?"; root=${2%/}; shift ;;
        --wheels) [ $# -ge 2 ] || fail "--wheels: which directory?"; wheels=$2; shift ;;
        --boot) boot=yes ;;
        --no-start) start='' ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; fail "unknown option $1" ;;
    esac
    shift
done

[ -z "$root" ] || [ -d "$root" ] || fail "--root: $root is not a directory"
if [ -n "$wheels" ]; then
    wheels=$(CDPATH='' cd -- "$wheels" 2>/dev/null && pwd) || fail "--wheels: there is no such directory"
    set -- "$wheels"/powerd-*.whl
    [ -f "$1" ] || fail "--wheels: no powerd-*.whl in $wheels: build one with: pip wheel --no-deps ."
fi
source=$(CDPATH='' cd -- "$here/../.." && pwd)
[ -n "$wheels" ] || [ -f "$source/pyproject.toml" ] || \
    fail "$source holds no copy of the repository: run the script from there, or give --wheels DIR"
if [ -z "$dry$root" ]; then
    [ "$(id -u)" = 0 ] || fail "run it as root (sudo $0), or with --dry-run to see what it does"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
        fail "powerd needs Python 3.11 or newer: this system is older than Debian 12"
fi

# A command that changes the running system.
act() {
    if [ -n "$dry" ]; then say "would run: $*"
    elif [ -n "$root" ]; then say "left to the board itself: $*"
    else say "running: $*"; "$@"
    fi
}

# lay FILE TARGET MODE: a file of ours, replaced when it differs.
lay() {
    target=$root$2
    if [ -f "$target" ] && cmp -s "$1" "$target"; then say "unchanged: $2"; return; fi
    if [ -n "$dry" ]; then say "would write: $2"; return; fi
    install -D -m "$3" "$1" "$target"
    say "written: $2"
}

# lay_once FILE TARGET MODE: a file that belongs to the user once it is there.
lay_once() {
    if [ -e "$root$2" ]; then say "kept: $2"; else lay "$@"; fi
}

# add_line FILE LINE: a line in a boot configuration, once, with a copy of the file as it was.
add_line() {
    if grep -qxF -- "$2" "$root$1"; then say "unchanged: $1"; return; fi
    if [ -n "$dry" ]; then say "would add to $1: $2"; return; fi
    [ -e "$root$1.before-powerd" ] || cp -p "$root$1" "$root$1.before-powerd"
    # A last line without its newline would swallow ours.
    [ -z "$(tail -c 1 "$root$1")" ] || printf '\n' >> "$root$1"
    printf '%s\n' "$2" >> "$root$1"
    say "added to $1: $2"
}

setting() { grep -v '^[[:space:]]*\(#\|$\)' "$here/boot/$1"; }

boot_settings() {
    if [ -f "$root/boot/uEnv.txt" ]; then
        if ! grep -q '^[^#]*BB-I2C2-FAST' "$root/boot/uEnv.txt" && grep -q '^uboot_overlay_addr7=' "$root/boot/uEnv.txt"
        then
            fail "/boot/uEnv.txt already uses uboot_overlay_addr7: add BB-I2C2-FAST-00A0.dtbo under a free number yourself"
        fi
        if [ ! -f "$root/lib/firmware/BB-I2C2-FAST-00A0.dtbo" ]; then
            act apt-get install --yes --no-install-recommends device-tree-compiler
            act dtc -@ -O dtb -o /lib/firmware/BB-I2C2-FAST-00A0.dtbo "$here/boot/BB-I2C2-FAST-00A0.dts"
        fi
        add_line /boot/uEnv.txt "$(setting beaglebone-uEnv.txt)"
    elif [ -f "$root/boot/firmware/config.txt" ]; then
        add_line /boot/firmware/config.txt "$(setting raspberrypi-config.txt)"
    elif [ -f "$root/boot/config.txt" ]; then
        add_line /boot/config.txt "$(setting raspberrypi-config.txt)"
    else
        fail "--boot: neither /boot/uEnv.txt (BeagleBone) nor config.txt (Raspberry Pi) is here: set the bus clock yourself"
    fi
    lay "$here/boot/powerd-modules.conf" /etc/modules-load.d/powerd.conf 0644
    say "The bus clock changes at the next boot; 'powerd check' shows it."
}

say "1. Python packages in /opt/powerd"
if [ -n "$wheels" ]; then
    act apt-get install --yes --no-install-recommends python3-venv
    act python3 -m venv /opt/powerd
    act /opt/powerd/bin/pip install --quiet --upgrade --no-index --find-links "$wheels" 'powerd[board]'
else
    act apt-get install --yes --no-install-recommends \
        python3-venv python3-zmq python3-smbus2 python3-serial python3-hatchling
    act python3 -m venv --system-site-packages /opt/powerd
    # Debian's own packages serve as dependencies and build it: nothing is fetched from anywhere else.
    act /opt/powerd/bin/pip install --quiet --force-reinstall --no-index --no-deps --no-build-isolation "$source"
fi

say "2. Files"
lay "$here/powerd.sysusers" /usr/lib/sysusers.d/powerd.conf 0644
lay "$here/60-powerd.rules" /etc/udev/rules.d/60-powerd.rules 0644
lay "$here/powerd.service" /etc/systemd/system/powerd.service 0644
lay_once "$here/powerd.toml" /etc/powerd/powerd.toml 0644
[ -z "$boot" ] || boot_settings

say "3. User, devices, service"
act systemd-sysusers
act udevadm control --reload
act udevadm trigger --subsystem-match=i2c-dev --subsystem-match=tty --subsystem-match=usbmisc \
    --subsystem-match=powercap --action=add
act ln -sf /opt/powerd/bin/powerd /usr/local/bin/powerd
act systemctl daemon-reload
if [ -n "$start" ]; then
    act systemctl enable powerd.service
    act systemctl restart powerd.service
fi
say "Done; nothing is measured yet. Next: powerd scan, edit /etc/powerd/powerd.toml, powerd check /etc/powerd/powerd.toml, systemctl restart powerd"
