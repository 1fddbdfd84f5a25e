#!/usr/bin/env bash
# Prepares this machine for `make test-kernel`: the Debian packages that build and run an emulated
# machine, and the machine's image. Idempotent: it returns at once when nothing has changed. With
# `bare`, for `make test-provision`. Exit 3 where this machine cannot build one: it is not root, has no
# Debian mirror, or too little disk; any other failure is a defect.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=(qemu-system-x86 debootstrap e2fsprogs openssh-client util-linux)

say() { printf 'setup-kernel: %s\n' "$*"; }
cannot() { say "cannot be built here: $*"; exit 3; }
. deploy/packages.sh

variant=${1:-agent}
source deploy/kernel-machine/image.sh
if [[ ! -e $image/complete ]]; then
  ((EUID == 0)) || cannot "it needs root"
  mkdir -p "$cache"
  free=$(df --output=avail -k "$cache" | tail -1)
  ((free > needed_kib)) || cannot "$cache has $((free >> 10)) MiB, and it takes $((needed_kib >> 10))"
  python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=20)' \
    "$mirror/dists/$suite/InRelease" 2>/dev/null || cannot "no mirror of Debian at $mirror"
fi

install_missing "${packages[@]}"
deploy/kernel-machine/build.sh "${1:-agent}"
[[ ${1:-agent} == bare ]] || .venv/bin/python deploy/kernel-machine/machine.py --prepare
