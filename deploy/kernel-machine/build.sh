#!/usr/bin/env bash
# Builds the image of the emulated machine: a stock Debian with its own kernel, systemd, Open
# vSwitch and a Python environment for the agent and its tests, as root.ext4, vmlinuz, initrd, an SSH
# key and the public key of its sshd, in the folder that image.sh names. Does nothing where it is
# there. Needs root, a Debian mirror and a Python package index.
#
#   deploy/kernel-machine/build.sh         the machine that the agent is tested in, of Debian 12
#   DEBIAN=13 deploy/kernel-machine/build.sh    the same of Debian 13
#   deploy/kernel-machine/build.sh bare    without Open vSwitch and Python packages
set -euo pipefail
cd "$(dirname "$0")/../.."
variant=${1:-agent}
[[ $variant == agent || $variant == bare ]] || { echo "usage: $0 [agent|bare]" >&2; exit 2; }
source deploy/kernel-machine/image.sh

say() { printf 'setup-kernel: %s\n' "$*"; }

if [[ -e $image/complete ]]; then
  say "nothing to do: $image"
  exit 0
fi
((EUID == 0)) || { say "building the image needs root"; exit 1; }

mkdir -p "$cache"
scratch=$(mktemp -d "$cache/building-XXXXXX")
root=$scratch/root
trap '! mountpoint -q "$root/proc" || umount "$root/proc"; rm -rf --one-file-system "$scratch"' EXIT
inside() { DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$root" "$@"; }
log=$scratch/log
quietly() { "$@" >>"$log" 2>&1 || { tail -30 "$log"; say "failed: $*"; exit 1; }; }
packages() { quietly inside apt-get -qq install -y --no-install-recommends "$@"; }

with_agent() {
  packages "${agent_packages[@]}"
  wheels=$root/tmp/wheels
  quietly deploy/kernel-machine/wheels.sh "$python" "$wheels" \
    setuptools wheel "${python_packages[@]}"
  # The code comes when the machine is started; until then its packages are empty.
  home=$root/opt/placewire
  install -D /dev/null "$home/src/placewire/__init__.py"
  install -m 644 pyproject.toml "$home/"
  touch "$home/README.md" "$home/LICENSE"
  quietly inside python3 -m venv /opt/placewire/.venv
  pip() {
    quietly inside /opt/placewire/.venv/bin/python -m pip --disable-pip-version-check install \
      --no-index --no-deps "$@"
  }
  pip --find-links /tmp/wheels $(cd "$wheels" && printf '/tmp/wheels/%s ' *.whl)
  # This writes the path of src into a .pth file, so that modules that come later are found.
  pip --no-build-isolation --editable /opt/placewire
  quietly inside /opt/placewire/.venv/bin/python -m compileall -q /opt/placewire/.venv/lib
  # What Placewire makes is left alone by networkd.
  mkdir -p "$root/etc/systemd/networkd.conf.d"
  printf '[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n' \
    >"$root/etc/systemd/networkd.conf.d/placewire.conf"
}

say "Debian $suite from $mirror"
quietly debootstrap --variant=minbase --include="$(IFS=,; echo "${system_packages[*]}")" \
  "$suite" "$root" "$mirror"

say "its kernel"
mount -t proc proc "$root/proc"
# Services are for the machine to start, not for this one.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
mkdir -p "$root/etc/initramfs-tools/conf.d"
# Only what mounts the root: a small initrd is unpacked soon, also in emulation.
printf 'MODULES=list\n' >"$root/etc/initramfs-tools/conf.d/placewire"
printf 'virtio_pci\nvirtio_blk\next4\ncrc32c_generic\n' >"$root/etc/initramfs-tools/modules"
rm -f "$root/etc/resolv.conf"
cp /etc/resolv.conf "$root/etc/resolv.conf"
quietly inside apt-get -qq update
packages "${kernel_packages[@]}"

if [[ $variant == agent ]]; then
  say "Open vSwitch, and its Python environment"
  with_agent
fi

say "its settings"
ssh-keygen -q -t ed25519 -N '' -C placewire-kernel-machine -f "$scratch/key"
install -D -m 600 "$scratch/key.pub" "$root/root/.ssh/authorized_keys"
printf 'placewire-kernel\n' >"$root/etc/hostname"
printf '127.0.0.1 localhost placewire-kernel\n' >"$root/etc/hosts"
printf '/dev/vda / ext4 noatime 0 1\n' >"$root/etc/fstab"
# The qemu user network's own addresses.
printf '[Match]\nName=eth0\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n' \
  >"$root/etc/systemd/network/eth0.network"
quietly inside systemctl enable systemd-networkd ssh
quietly inside systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
  e2scrub_all.timer e2scrub_reap.service systemd-timesyncd.service systemd-resolved.service

say "the image"
umount "$root/proc"
rm -rf "$root"/tmp/wheels "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* \
  "$root"/etc/resolv.conf "$root"/usr/sbin/policy-rc.d
# The agent's machine reaches nothing; the bare one asks qemu's user network for names.
[[ $variant == agent ]] || printf 'nameserver 10.0.2.3\n' >"$root/etc/resolv.conf"
cp "$root/etc/ssh/ssh_host_ed25519_key.pub" "$scratch/host_key.pub"
mv "$root"/boot/vmlinuz-* "$scratch/vmlinuz"
mv "$root"/boot/initrd.img-* "$scratch/initrd"
truncate -s 8G "$scratch/root.ext4"
quietly mke2fs -q -t ext4 -E lazy_itable_init=1,lazy_journal_init=1 -d "$root" "$scratch/root.ext4"
rm -rf --one-file-system "$root"
touch "$scratch/complete"
rm -rf "$cache/$variant-$DEBIAN-"*  # a former one: each takes more than a gigabyte
mv "$scratch" "$image"
say "done: $image ($(du -sh "$image" | cut -f1))"
