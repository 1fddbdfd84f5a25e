"""Gives a program the standard streams that it was started without, as by `>&-` or some schedulers.

Otherwise the next file that it opens, such as the journal, gets their descriptor, and with it what
a library or another program writes to its standard error; what is printed as an error goes to the
standard output; and a flush of the standard output is an error.
"""

from __future__ import annotations

import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_missing_streams() -> None:
    """Each of them is /dev/null from now on, also for the programs that this one starts. To be
    called before a program opens files."""
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            # The lowest free number: those below it are taken by now.
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, opened == number)
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8"))
