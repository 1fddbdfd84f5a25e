"""Standard output and error that outlast whoever reads them: the other end of a pipe, a terminal.

The key that interrupts `controller apply ... | tee log` ends `tee` too: what is said while
everything is put back must not stop that.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

# What the kernel says of a pipe that nobody reads, and of a terminal that was closed.
_NOBODY_READS = (errno.EPIPE, errno.EIO)


class _Lasting(io.FileIO):
    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return super().write(data)  # type: ignore[arg-type]


def make_output_last() -> None:
    """Of this process, where it is its own: a test's recording is left as it is."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr)


def _lasting(stream: Any) -> Any:
    """Encoded and buffered like it."""
    if not isinstance(stream, io.TextIOWrapper):  # none: the process began without it
        return stream
    stream.flush()
    raw = _Lasting(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
