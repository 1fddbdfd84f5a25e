"""What the recorded sort says of a schedule, under the model in which every device keeps to it.

Under `thesis` a device runs its operators in the recorded sort, each when the one before it there
has ended (`contention_free` of the simulation). So of two operators that certainly share a device
the later one starts after the earlier one's end. `with_turns` has these waits as edges, each from
an operator to the next one of its unit.

An operator v that follows u at once in the sort, and is of the same unit, starts when u ends where
it reads nothing of other units: what it reads was made on its own device, before u or by it, and no
operator runs between the two. To start it then if it started later breaks no rule and lengthens no
step. Where no other unit reads what u makes, none waits for u alone either, so that u and v are one
operator of their summed work. `as_one` makes one operator of each such run. An edge that takes time
(`near`) ends a run, too. Within a unit there is one where two units were found to be apart before
others made them one: no schedule is within the step then, and the edge, if it stays, shows that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.bounds.relaxation import Relaxation, both_merged


def with_turns(relaxation: Relaxation) -> Relaxation:
    """The relaxation, in which operators of one unit follow each other in the order."""
    n, unit = relaxation.operators, relaxation.unit
    in_order = relaxation.order[np.argsort(unit[relaxation.order], kind="stable")]
    earlier, later = in_order[:-1], in_order[1:]
    waits = unit[earlier] == unit[later]
    known = relaxation.source * n + relaxation.target
    waits &= ~np.isin(earlier * n + later, known)
    count = int(waits.sum())
    is_turn = relaxation.is_turn
    if is_turn is None:
        is_turn = np.zeros(len(known), dtype=bool)
    return replace(
        relaxation,
        source=np.concatenate([relaxation.source, earlier[waits]]),
        target=np.concatenate([relaxation.target, later[waits]]),
        near=np.concatenate([relaxation.near, np.zeros(count)]),
        far=np.concatenate([relaxation.far, np.full(count, np.inf)]),
        is_turn=np.concatenate([is_turn, np.ones(count, dtype=bool)]),
    )


def as_one(relaxation: Relaxation) -> tuple[Relaxation, IntArray]:
    """(the relaxation with one operator for each run, int64[n]: which of them each operator became,
    in the order). relaxation: of `with_turns`."""
    assert relaxation.is_turn is not None
    n, unit, order = relaxation.operators, relaxation.unit, relaxation.order
    source, target = relaxation.source, relaxation.target
    waits_otherwise = (unit[source] != unit[target]) | (relaxation.near > 0.0)
    free = np.ones((2, n), dtype=bool)
    free[0, target[waits_otherwise]] = False
    free[1, source[waits_otherwise]] = False
    joins = np.zeros(n, dtype=bool)
    joins[1:] = (unit[order[1:]] == unit[order[:-1]]) & free[0, order[1:]] & free[1, order[:-1]]
    home = np.empty(n, dtype=np.int64)
    home[order] = np.cumsum(~joins) - 1
    count = int(home.max(initial=-1)) + 1
    first = order[~joins]
    leaves = home[source] != home[target]
    ends = home[source[leaves]], home[target[leaves]]
    edges = both_merged(*ends, relaxation.near[leaves], relaxation.far[leaves])
    others = (ends[0] * count + ends[1])[~relaxation.is_turn[leaves]]
    small = replace(
        relaxation,
        order=np.arange(count),
        work=summed(relaxation.work, home),
        unit=unit[first],
        source=edges[0], target=edges[1], near=edges[2], far=edges[3],
        group=relaxation.group[first],
        is_turn=~np.isin(edges[0] * count + edges[1], others),
    )  # fmt: skip
    return small, home


def summed(values: np.ndarray, home: IntArray) -> np.ndarray:
    """The sums of values [n] or [n, D] over the operators that became one."""
    total = np.zeros((int(home.max(initial=-1)) + 1, *values.shape[1:]), dtype=values.dtype)
    np.add.at(total, home, values)
    return total
