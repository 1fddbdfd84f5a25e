#!/usr/bin/env bash
# Installs Debian's package chromium for `make test-page`: with what it needs some 100 MB to fetch,
# and 300 MB and more on the disk. Only the tests of a run's page need it. Idempotent.
set -euo pipefail
cd "$(dirname "$0")"
say() { printf 'chromium: %s\n' "$*"; }
. ./packages.sh
! command -v chromium >/dev/null || exit 0
install_missing chromium
