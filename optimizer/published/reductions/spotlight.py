"""SpotLight's grouping by name, as the thesis describes it (sections 2.3 and 5.3).

Operators whose ids share their first two levels (`sequential_1/conv2d_1/convolution`,
`sequential_1/conv2d_1/Reshape`) are one super operator. Where that would make a cycle, which the
descriptions do not mention, the group stays several operators on one device. An id of a single
level belongs to no group.

In captured graphs an operator's module takes the place of its id: `model.layers.3.attention.query`
is read as `model/layers.3/attention/query`, since a number tells modules of one list apart and is
no level. Operators of the backward pass belong to the modules of their forward operators.
"""

from __future__ import annotations

import re

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.shared.groups import Groups
from placewire.optimizer.reductions.colocation import merged_by_key
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.reduction import Reduction
from placewire.optimizer.registry import Refusal

# Memory, devices and keys may split a prefix into groups, of which so many are tried.
_TRIED = 8


def reduce_as_spotlight(problem: Problem) -> Reduced:
    keys = prefix_groups(problem)
    return contract(problem, merged_by_key(problem, keys), keys)


def refusal(problem: Problem) -> Refusal | None:
    if any(len(one) > 1 for one in _by_prefix(problem).values()):
        return None
    return Refusal(
        "spotlight groups operators by the first two levels of their ids (as in "
        "sequential_1/conv2d_1/Reshape) or modules, and no two operators of this graph share "
        "any; it takes graphs whose operators are named by their place in the model"
    )


def _by_prefix(problem: Problem) -> dict[str, list[int]]:
    """The operators of each two-level prefix, in the recorded order."""
    graph = problem.graph
    members: dict[str, list[int]] = {}
    for i in graph.topological_order.tolist():
        if prefix := two_level_prefix(module_path(graph.modules[i]) or graph.ids[i]):
            members.setdefault(prefix, []).append(i)
    return members


def prefix_groups(problem: Problem) -> IntArray:
    """int64[n]: keys of the groups, the graph's own among them; -1 outside any."""
    groups = Groups(problem)
    for one in _by_prefix(problem).values():
        heads: list[int] = []
        for i in one:
            if not any(groups.join(head, i) for head in heads[-_TRIED:]):
                heads.append(i)
    return groups.keys()


def module_path(module: str) -> str:
    """`model/layers.3/attention` of model.layers.3.attention."""
    return re.sub(r"\.(?!\d+(?:\.|$))", "/", module)


def two_level_prefix(identifier: str) -> str:
    """`a/b` of `a/b/c`, of `/a/b` and of `a/b`; "" of `a`."""
    levels = identifier.strip("/").split("/")
    return "/".join(levels[:2]) if len(levels) > 1 else ""


REDUCTION = Reduction(
    "operators whose modules or ids share their first two levels",
    reduce_as_spotlight,
    paper="Gao et al., Spotlight (ICML 2018)",
    section="thesis 5.3",
    accepts=refusal,
)
