#!/usr/bin/env bash
# Prepares this machine for `make test-kernel`: the Debian packages that build and run an emulated
# machine, and the machine's image. Idempotent: it returns at once when nothing has changed. With
# `bare`, for `make test-provision`.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=(qemu-system-x86 debootstrap e2fsprogs openssh-client util-linux)

say() { printf 'setup-kernel: %s\n' "$*"; }
. deploy/packages.sh

install_missing "${packages[@]}"
deploy/kernel-machine/build.sh "${1:-agent}"
[[ ${1:-agent} == bare ]] || .venv/bin/python deploy/kernel-machine/machine.py --prepare
