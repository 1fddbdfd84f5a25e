"""Lets this process go on where its output cannot: the reader (a pipe, a terminal) is gone, or the
disk of the file is full.

Ctrl-C in `controller apply ... | tee log` ends `tee` too; a message about restoring must not then
stop the restoring. What is printed from then on is lost; where a disk is to blame, that is told at
the end (`lost_output`).
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, cast

# A pipe that nobody reads, a terminal that was closed; a full disk, a quota, a limit of file size.
_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CANNOT_GO_ON = (errno.EPIPE, errno.EIO, *_DISK_IS_FULL)
_STANDARD_OUTPUT = 1
_lost: list[str] = []


class _Lasting(io.FileIO):
    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                # None: there is no room, and another program, with which this process shares the
                # terminal or the pipe, has made it a non-blocking one.
                written = cast("int | None", super().write(rest))
                if written is None:
                    select.select([], [self], [])
                rest = rest[written or 0 :]
        except OSError as error:
            if error.errno not in _CANNOT_GO_ON:
                raise
            if self.fileno() == _STANDARD_OUTPUT and error.errno in _DISK_IS_FULL:
                _lost.append(os.strerror(error.errno))
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
        return size


def lost_output() -> str | None:
    """Why the disk did not take all of the standard output, which ends with this; None: it did, or
    its reader is gone."""
    sys.stdout.flush()
    return _lost[0] if _lost else None


def make_output_last() -> None:
    """Replaces this process's standard output and error. A test's recording of them is left."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr)


def _lasting(stream: Any) -> Any:
    """A stream to the same place, with the same encoding and buffering. It writes characters that
    the encoding lacks as escapes: what a rank prints must not end its training."""
    if not isinstance(stream, io.TextIOWrapper):  # The process was started without this stream.
        return stream
    stream.flush()
    raw = _Lasting(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
