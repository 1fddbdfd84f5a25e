"""The decorator that compiles every kernel; compiled code is kept from one run to the next.

numba decides from a function's own file whether its kept code is still good: after a change of a
callee in another file it would run the old code. So each state of the sources has a folder of its
own for compiled code.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import IndexDataCacheFile
from numba.core.registry import cpu_target

from placewire.optimizer.kernels.code_folder import code_folder
from placewire.visible import visible

F = TypeVar("F", bound=Callable[..., Any])


def _keep_code_by_sources() -> bool:
    """Returns whether code is kept; where it is not, says why."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    # Constants of the network model are compiled in, and one of its functions is compiled as well.
    beside = (*here.parent.glob("*/kernels/*.py"), *here.parent.glob("network/*.py"))
    for path in sorted({*here.rglob("*.py"), *beside}):
        digest.update(path.read_bytes())
    settings: Any = numba.config
    folder, why = code_folder(here, settings.CACHE_DIR, digest.hexdigest()[:16])
    if folder is None:
        told = f"compiled code is not kept, so each command compiles it anew: {why}"
        print(visible(told), file=sys.stderr, flush=True)
        return False
    settings.CACHE_DIR = str(folder)
    return True


def _keep_one_at_a_time() -> None:
    """Makes processes that compile at the same time take turns at writing.

    To keep a new version of a function, numba reads the list of kept versions and writes it back
    with the new one: of two processes that do so at once, one would lose its version, or both would
    use the same file for theirs.
    """
    cache_file: Any = IndexDataCacheFile
    keep = cache_file.save

    def kept(file: Any, key: Any, code: Any) -> None:
        with (Path(file._cache_path) / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keep(file, key, code)

    cache_file.save = kept


def _load_numba_without_blas() -> None:
    """Keeps numba from importing scipy.linalg, which takes as long as all its other imports.

    numba imports that module for its BLAS before it loads the first function, and no function here
    multiplies matrices. So the module is hidden while numba looks for it.
    """
    wanted = "scipy.linalg.cython_blas"
    if wanted not in sys.modules:
        sys.modules[wanted] = cast(Any, None)
        try:
            cpu_target.typing_context.refresh()
            cpu_target.target_context.refresh()
        finally:
            del sys.modules[wanted]


_IS_KEPT = _keep_code_by_sources()
_keep_one_at_a_time()
_load_numba_without_blas()


def compiled(function: F) -> F:
    """Compiles a function and keeps its Python type for callers.

    There is no fast-math: the same input must give the same bits on every machine. The global lock
    is released, because no compiled function touches a Python object.
    """
    return cast(F, numba.njit(cache=_IS_KEPT, nogil=True, error_model="numpy")(function))
