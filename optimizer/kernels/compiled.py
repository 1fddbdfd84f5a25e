"""The one way a function is compiled here, typed so that callers keep their own types.

numba keeps compiled code from one run to the next, but looks only at the file of the function
itself: with a callee changed in another file it would go on with the old one. So the code of each
state of these sources has a folder of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import IndexDataCacheFile
from numba.core.registry import cpu_target

F = TypeVar("F", bound=Callable[..., Any])


def _keep_code_by_sources() -> None:
    here = Path(__file__).parent
    digest = hashlib.sha256()
    # The network model's constants are compiled in, and its loops run compiled too.
    beside = (*here.parent.glob("*/kernels/*.py"), *here.parent.glob("network/*.py"))
    for path in sorted({*here.rglob("*.py"), *beside}):
        digest.update(path.read_bytes())
    settings: Any = numba.config
    if settings.CACHE_DIR:
        base = Path(settings.CACHE_DIR)
    elif os.access(here, os.W_OK):
        base = here / "__pycache__"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "placewire"
    settings.CACHE_DIR = str(base / digest.hexdigest()[:16])


def _keep_one_at_a_time() -> None:
    """numba reads which versions of a function are kept, and writes what it read and its own: of
    two processes that compile at once, one's would be lost, or both get the same file."""
    cache_file: Any = IndexDataCacheFile
    keep = cache_file.save

    def kept(file: Any, key: Any, code: Any) -> None:
        with (Path(file._cache_path) / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keep(file, key, code)

    cache_file.save = kept


def _load_numba_without_blas() -> None:
    """Before it loads the first function numba looks for the BLAS of scipy.linalg, whose import
    takes as long as all the rest. No function here multiplies matrices: for as long as numba looks,
    the module cannot be found, and scipy is imported where it is needed."""
    wanted = "scipy.linalg.cython_blas"
    if wanted not in sys.modules:
        sys.modules[wanted] = cast(Any, None)
        try:
            _refresh()
        finally:
            del sys.modules[wanted]


def _refresh() -> None:
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


_keep_code_by_sources()
_keep_one_at_a_time()
_load_numba_without_blas()


def compiled(function: F) -> F:
    """No fast-math: the same input must give the same bits on every machine. Threads may run at
    once: no compiled function touches an object of Python."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
