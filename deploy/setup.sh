#!/usr/bin/env bash
# Prepares this machine to run Placewire from a checkout: Debian packages, and a virtual environment
# in .venv from requirements.lock. Idempotent: it returns at once when nothing has changed.
#
#   deploy/setup.sh          all of it
#   deploy/setup.sh agent    no Debian packages, and in .venv only what the agent needs: no torch
#   deploy/setup.sh job      no Debian packages, and in .venv what ranks need
#
#   PLACEWIRE_TORCH   which torch to install (default: torch==2.13.0+cpu). Give your own build, for
#                     example torch==2.13.0+cu130 with PIP_EXTRA_INDEX_URL set, or "keep" to use
#                     the one that is already in .venv. A CUDA build is never chosen for you.
#   PYTHON            the interpreter for .venv (default: python3; 3.11 to 3.13)
set -euo pipefail
cd "$(dirname "$0")/.."
# Others run what root installs.
umask 022

part=${1:-all}
[[ $part == all || $part == agent || $part == job ]] || { echo "usage: $0 [agent|job]" >&2; exit 2; }
torch=${PLACEWIRE_TORCH:-torch==2.13.0+cpu}
python=${PYTHON:-python3}
packages=(openvswitch-switch iperf3 iproute2 ethtool nftables openssh-server procps util-linux
  python3-venv)

say() { printf 'setup: %s\n' "$*"; }
. deploy/packages.sh

debian_packages() {
  install_missing "${packages[@]}"
  # Tests start sshd of their own; a machine that had none does not get one that listens.
  if [[ " ${missing[*]} " == *" openssh-server "* && -d /run/systemd/system ]]; then
    systemctl --quiet disable --now ssh.service
  fi
}

# In .venv, which is there: only what the unit's program imports.
agent_environment() {
  say "installing what the agent needs"
  pip install -c requirements.lock setuptools wheel
  pip install -c requirements.lock --no-build-isolation --editable '.[agent]'
}

all_but_torch() {
  say "installing the locked packages"
  pip install -r requirements.lock
  pip install --no-deps --no-build-isolation --editable .
}

install_torch() {
  [[ $torch != keep ]] || return 0
  say "installing $torch"
  pip install -c requirements.lock "$torch" \
    || pip install -c requirements.lock "$torch" --extra-index-url https://download.pytorch.org/whl/cpu \
    || {
      say "no $torch was found for this Python, neither where pip looks nor at download.pytorch.org"
      say "let pip reach one of them, or name another build in PLACEWIRE_TORCH"
      exit 1
    }
}

require_known_python() {
  "$python" - <<'PY'
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    found = sys.version.split()[0]
    sys.exit(f"""setup: {sys.executable} is Python {found}; 3.11, 3.12 or 3.13 is needed
setup: Debian 12 and 13 and Ubuntu 24.04 have one; elsewhere install one, and name it in PYTHON""")
PY
}

# Where it is the wrong one, nothing is installed; where there is none, packages bring it.
! command -v "$python" >/dev/null || require_known_python
[[ $part != all ]] || debian_packages

stamp=.venv/placewire.stamp
[[ $part == all ]] || stamp=.venv/placewire-$part.stamp
wanted=$(cat requirements.lock pyproject.toml deploy/setup.sh | sha256sum | cut -d' ' -f1)
[[ $part == agent ]] || wanted+=" $torch"
# The search is compiled again where its sources have changed, so that no first search is slow.
search_stamp=.venv/placewire-search.stamp
searched=$(find optimizer \( -path '*/kernels/*.py' -o -path '*/network/*.py' \) -print0 \
  | sort -z | xargs -0 cat | sha256sum | cut -d' ' -f1)
is_compiled() { [[ $part != all || -f $search_stamp && $(cat "$search_stamp") == "$searched" ]]; }
search=(.venv/bin/python -m placewire.optimizer.engines.warm_up auto linear-clustering flexflow)
compile_what_learns() {  # It is built on torch.
  .venv/bin/python -m placewire.optimizer.engines.warm_up hsdag
  printf '%s' "$searched" >"$search_stamp"
}
# An upgrade of the system may have taken away the Python that .venv was made with.
works() { .venv/bin/python -c 'import pip' &>/dev/null; }
if [[ -f $stamp && $(cat "$stamp") == "$wanted" ]] && works; then
  if is_compiled; then
    say "nothing to do"
  else
    say "compiling the search, whose sources have changed (a minute or two)"
    "${search[@]}"
    compile_what_learns
    say "done"
  fi
  exit 0
fi

require_known_python
works || "$python" -m venv .venv
# Of the whole, pip would compile one file after the other before anything else goes on.
later=()
[[ $part != all ]] || later=(--no-compile)
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@" "${later[@]}"; }
# Some packages hold files for other versions of Python, which pip leaves out without a word too.
compile_packages() { .venv/bin/python -m compileall -q .venv/lib &>/dev/null || true; }

case $part in
  agent) agent_environment ;;
  job)
    all_but_torch
    install_torch
    ;;
  all)
    all_but_torch
    say "compiling the search (a minute or two, once)"
    "${search[@]}" &
    compiling=$!
    # What runs in the background does not hear Ctrl-C.
    trap 'kill "$compiling" 2>/dev/null || true' EXIT
    install_torch
    compile_packages
    wait "$compiling"
    trap - EXIT
    compile_what_learns
    ;;
esac
printf '%s' "$wanted" >"$stamp"
if [[ $part == all ]]; then say "done: .venv/bin/controller --help"; else say "done: $part"; fi
