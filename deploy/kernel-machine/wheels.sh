#!/usr/bin/env bash
# Fetches into a folder the wheels of these requirements and of all that they need, as requirements.lock
# has them, for a Python that need not be the one here; with the present machine's pip and its settings.
#
#   deploy/kernel-machine/wheels.sh 3.13 FOLDER .[agent] ...
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1 folder=$2
shift 2
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@" -c requirements.lock; }
# For another Python than its own, pip fetches only what need not be built. Of this one there is only
# the source, whose wheel is one for every Python.
pip wheel --no-deps -w "$folder" ovs
pip download --python-version "$python" --only-binary :all: --find-links "$folder" -d "$folder" "$@"
