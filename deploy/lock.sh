#!/usr/bin/env bash
# Renews requirements.lock: the newest versions that pyproject.toml admits, torch left out (setup.sh
# chooses its build). Review the difference before committing it.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/venv"
pip() { "$scratch/venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install "${PLACEWIRE_TORCH:-torch==2.13.0+cpu}"
pip install ".[all,dev]" setuptools wheel
{
  echo '# Exact versions of everything but torch (see deploy/setup.sh). Renewed by `make lock`.'
  pip freeze --all | grep -viE '^(torch|placewire|pip)\b'
} >requirements.lock
