"""Begins operators that reduce where torch does not tell Python by which operation they do so.

Python cannot read the ReduceOp that an older torch (2.7 and before) gives a kernel; torch's own
kernels can. Ours is in the place of that for the processor's memory. The same one is there for
PrivateUse1, a kind of device that no tensor of ours is on: it asks its process group for the
backend of that kind, and begins the operator there. A function of TorchScript calls it, because
that does not keep Python's lock meanwhile, for which a thread of gloo's may wait.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch._C._distributed_c10d import ProcessGroup, Work

_KIND = torch.device("privateuseone")
# Of arguments that one operator has, and another in whose place it runs has not.
_LEFT_OUT = {"bool": False, "int": -1}


def is_told(operation: Any) -> bool:
    """operation: a ReduceOp as a kernel gets it."""
    return hasattr(operation, "op")


def begun_by_torch(name: str, backend: Any, values: dict[str, Any]) -> Any:
    """Has a backend begin an operator of c10d; values: its arguments by their names."""
    group = cast(Any, ProcessGroup)(backend.rank(), backend.size())
    group._register_backend(_KIND, ProcessGroup.BackendType.GLOO, backend)
    takes, function = _function(name)
    given = {**values, "process_group": group.boxed()}
    core: Any = torch._C
    taken, left = core._dispatch_tls_local_include_set(), core._dispatch_tls_local_exclude_set()
    taken |= core.DispatchKeySet(core.DispatchKey.PrivateUse1)
    left |= core.DispatchKeySet(core.DispatchKey.AutogradPrivateUse1)
    with core._ForceDispatchKeyGuard(taken, left):
        return Work.unbox(function(*(given.get(one, _LEFT_OUT.get(kind)) for kind, one in takes)))


@functools.cache
def _function(name: str) -> tuple[list[list[str]], Any]:
    """Type and name of an operator's arguments, and a function of them that returns its handle."""
    schema = str(getattr(torch.ops.c10d, name).default._schema)
    before, _, after = schema.partition("(")[2].rpartition(") -> ")
    takes = [one.partition("=")[0].split(" ") for one in before.split(", ")]
    arguments = ", ".join(f"%{argument} : {kind}" for kind, argument in takes)
    gives = after.strip("()").split(", ")
    results = ", ".join(f"%{k} : {kind}" for k, kind in enumerate(gives))
    called = f"c10d::{name}({', '.join(f'%{argument}' for _, argument in takes)})"
    text = f"graph({arguments}):\n  {results} = {called}\n  return (%{len(gives) - 1})"
    core: Any = torch._C
    return takes, core._create_function_from_graph(name, core.parse_ir(text))
