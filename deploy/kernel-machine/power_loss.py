"""Takes the power from the emulated machine while one state is kept there and another staged over
it, and sees what it is when it is back: `make test-kernel` ends with this.

    .venv/bin/python deploy/kernel-machine/power_loss.py

Exit 1: it is not what it should be. Others: as machine.py.
"""

from __future__ import annotations

import signal
import sys

from machine import MachineError, image_directory, machine, memory_file

LIMIT_SECONDS = 1800
_IN_MACHINE = (
    "env PLACEWIRE_DATAPATH=system PLACEWIRE_TEST_PATIENCE=10 "
    ".venv/bin/python tests/kernel/power_loss.py "
)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        image = image_directory()
        memory = memory_file(image)
        known = memory if memory.exists() else None
        with machine(image, LIMIT_SECONDS, memory=known) as running:
            running.set_clock()
            running.install_code()
            if status := running.run(_IN_MACHINE + "before"):
                return status
            running.lose_power()
            return running.run(_IN_MACHINE + "after")
    except MachineError as error:
        print(f"machine: {error}", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main())
