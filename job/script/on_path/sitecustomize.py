"""Runs at the begin of every Python process of a script, before the script does.

Once the script begins to use torch.distributed with gloo, its collectives are cut between all NICs
(placewire_every_nic.py). A sitecustomize of the script's own environment runs as ever.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_DISTRIBUTED = "torch.distributed.distributed_c10d"


def _run_the_next() -> None:
    others = [path for path in sys.path if Path(path).resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Changes two functions as soon as their module is there, before others take them from it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _DISTRIBUTED:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _then_changed(spec.loader.exec_module)
        return spec


def _then_changed(exec_module: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(exec_module)
    def run(module: Any) -> None:
        exec_module(module)
        begin, end = module.init_process_group, module.destroy_process_group

        @functools.wraps(begin)
        def init_process_group(*args: Any, **options: Any) -> Any:
            try:
                # Not before, since it imports torch.distributed.
                importlib.import_module("placewire_every_nic").install()
            except Exception as error:  # Of a torch that lacks what it imports.
                sys.stderr.write(f"placewire: each collective is one NIC's: {error!r}\n")
            return begin(*args, **options)

        @functools.wraps(end)
        def destroy_process_group(group: Any = None) -> Any:
            ours = sys.modules.get("placewire_every_nic")
            if ours is not None:
                ours.forget(group)
            return end(group)

        module.init_process_group = init_process_group
        module.destroy_process_group = destroy_process_group

    return run


if os.environ.get("PLACEWIRE_NICS"):
    sys.meta_path.insert(0, _WhenImported())
_run_the_next()
