"""What stands for NVIDIA's driver in the emulated machine, which has no GPU: its entry in
/proc/devices, its device files, and its `nvidia-smi`.

systemd looks in /proc/devices for the drivers that a unit names in DeviceAllow=. CUSE enters any
name there. Behind the device files is nothing, so that a process which may open one gets ENXIO, and
one that may not gets EPERM.
"""

from __future__ import annotations

import os
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NVIDIA_SMI = Path("/usr/local/bin/nvidia-smi")
MAJOR, MODESET_MINOR = 195, 254
# Each with the minor that NVIDIA's driver gives it.
DEVICES = {Path("/dev/nvidia0"): 0, Path("/dev/nvidiactl"): 255}
# Of another driver, which the unit does not name.
FOREIGN, FOREIGN_MAJOR = Path("/dev/placewire-test"), 240
# As systemd names the unit's directory to its processes.
TOLD = Path("/run/placewire-agent/opened")
_SMI = f"""\
#!/usr/bin/python3
import errno, os, sys
opened = {{}}
for name in {[str(path) for path in (*DEVICES, FOREIGN)]}:
    try:
        os.close(os.open(name, os.O_RDWR))
        opened[name] = "opened"
    except OSError as error:
        opened[name] = errno.errorcode[error.errno]
with open(os.environ["RUNTIME_DIRECTORY"] + "/{TOLD.name}", "w") as told:
    told.writelines(f"{{name}} {{what}}\\n" for name, what in opened.items())
if opened["/dev/nvidiactl"] == "EPERM":
    print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    sys.exit(9)
for address in ("65", "E5"):
    print(f"NVIDIA A100-SXM4-80GB, 81920, 00000000:{{address}}:00.0, Disabled")
"""
# Of linux/fuse.h: a request's and an answer's header, and the answer to CUSE_INIT.
_REQUEST, _ANSWER = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
_INIT_IN, _INIT_OUT = struct.Struct("=IIII"), struct.Struct("=8I40x")
_CUSE_INIT, _LEAST_READ_BYTES = 4096, 131_072


@contextmanager
def device_files() -> Iterator[None]:
    """The device files and nvidia-smi, of a driver that is not loaded."""
    with ExitStack() as stack:
        numbers = {path: (MAJOR, minor) for path, minor in DEVICES.items()}
        for path, number in {**numbers, FOREIGN: (FOREIGN_MAJOR, 0)}.items():
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*number))
            stack.callback(path.unlink)
            path.chmod(0o666)
        NVIDIA_SMI.write_text(_SMI)
        stack.callback(NVIDIA_SMI.unlink)
        NVIDIA_SMI.chmod(0o755)
        yield


@contextmanager
def loaded() -> Iterator[None]:
    """The driver has its entry in /proc/devices."""
    subprocess.run(["modprobe", "cuse"], check=True)
    kernel = os.open("/dev/cuse", os.O_RDWR)
    try:
        asked = os.read(kernel, _LEAST_READ_BYTES)
        _, opcode, unique, *_ = _REQUEST.unpack_from(asked)
        assert opcode == _CUSE_INIT
        major, minor, _, _ = _INIT_IN.unpack_from(asked, _REQUEST.size)
        numbers = MAJOR, MODESET_MINOR
        body = _INIT_OUT.pack(major, minor, 0, 0, 4096, 4096, *numbers) + b"DEVNAME=nvidia\0"
        os.write(kernel, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)
        assert f"{MAJOR} nvidia\n" in Path("/proc/devices").read_text()
        yield
    finally:
        os.close(kernel)


def opened() -> dict[str, str]:
    """What nvidia-smi, as a process of the agent, got of each device file."""
    return dict(line.split() for line in TOLD.read_text().splitlines())
