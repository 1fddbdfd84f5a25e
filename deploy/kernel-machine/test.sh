#!/usr/bin/env bash
# Runs the agent's network tests in the emulated machine, on Open vSwitch's kernel datapath, and
# those of tests/kernel, which have no other place to run. Arguments go to pytest:
#
#   deploy/kernel-machine/test.sh tests/kernel -k acknowledgements
#
# --short: only what the kernel datapath does with a packet, in a minute. Exit 3 where there is no
# machine (`make setup-kernel`).
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ ${1-} != --short ]] || set -- tests/kernel -m "network and not slow" "${@:2}"
(($#)) || set -- tests/kernel tests/agent/drivers/test_drivers.py tests/agent/test_agent.py tests/agent/network/test_bandwidth.py
exec .venv/bin/python deploy/kernel-machine/machine.py --limit "${PLACEWIRE_KERNEL_LIMIT:-3600}" -- \
  env PLACEWIRE_DATAPATH=system PLACEWIRE_TEST_PATIENCE=10 HYPOTHESIS_STORAGE_DIRECTORY=/tmp \
  .venv/bin/python -m pytest -q -p no:cacheprovider -m network --durations=10 "$@"
