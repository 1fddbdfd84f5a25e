#!/usr/bin/env bash
# Unpacks the programs of Debian's package prometheus into the user's cache, for `make
# test-monitoring`: 19 MB are fetched, and 98 MB lie on the disk. The package is not installed: an
# installed one starts a server that listens on every interface of this machine. Idempotent.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/placewire/prometheus
[[ ! -e $cache/complete ]] || exit 0
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
  echo "prometheus: this machine has no apt-get and dpkg-deb; put the programs prometheus and" >&2
  echo "prometheus: promtool into $cache, and make an empty file 'complete' beside them" >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get -qq -o APT::Sandbox::User=root download prometheus
dpkg-deb -x prometheus_*.deb unpacked
mkdir -p "$cache"
cp unpacked/usr/bin/prometheus unpacked/usr/bin/promtool "$cache"
touch "$cache/complete"
