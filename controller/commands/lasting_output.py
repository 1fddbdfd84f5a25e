"""Lets this process go on printing when the reader of its output (a pipe, a terminal) is gone.

Ctrl-C in `controller apply ... | tee log` ends `tee` too; a message about restoring must not then
stop the restoring.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

# The kernel's errors for a pipe that nobody reads, and for a terminal that was closed.
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
    """Replaces this process's standard output and error. A test's recording of them is left."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr)


def _lasting(stream: Any) -> Any:
    """A stream to the same place, with the same encoding and buffering."""
    if not isinstance(stream, io.TextIOWrapper):  # The process was started without this stream.
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
