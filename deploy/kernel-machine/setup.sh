#!/usr/bin/env bash
# Prepares this machine for `make test-kernel`: the Debian packages that build and run an emulated
# machine, and the machine's image. Idempotent: it returns at once when nothing has changed. With
# `bare`, for `make test-provision`.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=(qemu-system-x86 debootstrap e2fsprogs openssh-client util-linux)

say() { printf 'setup-kernel: %s\n' "$*"; }

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' \
    || missing+=("$package")
done
if ((${#missing[@]})); then
  if ((EUID != 0)); then
    say "these Debian packages are missing: ${missing[*]}"
    say "install them (apt-get install ${missing[*]}) or run this as root"
    exit 1
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
fi
deploy/kernel-machine/build.sh "${1:-agent}"
[[ ${1:-agent} == bare ]] || .venv/bin/python deploy/kernel-machine/machine.py --prepare
