"""Puts bundles into a step: tensors of one label that one device sends another are one message.

The result is a step like any other, in which a bundle is an operator of its sender that copies the
tensors into one (simulation.bundles says the same of a graph).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.tables import Tables


class Labels(NamedTuple):
    """label int64[m]: that of a tensor, -1 where it travels alone; waited int64[m]: its label where
    a reader waits for it, that is, belongs to a micro-batch and the tensor is no weight. serves_all
    bool[n]: the operator belongs to no micro-batch. mark float64[m]: a random number for each
    tensor, whose sums tell sets of tensors apart. copy_seconds_per_bit float64[D]. All arrays are
    empty where nothing has a label."""

    label: IntArray
    waited: IntArray
    serves_all: BoolArray
    mark: FloatArray
    copy_seconds_per_bit: FloatArray


class Step(NamedTuple):
    """The arrays of Tables that say what reads what, with bundles. topological: as far as operators
    can start."""

    topological: IntArray
    consumers_start: IntArray
    consumers: IntArray
    inputs_start: IntArray
    inputs: IntArray
    outputs_start: IntArray
    outputs: IntArray


class Bundles(NamedTuple):
    """tensor, to, bundle int64[...]: for each message that has a label its tensor, its destination
    device and its bundle below `bundles`, -1 where it travels alone."""

    tensor: IntArray
    to: IntArray
    bundle: IntArray
    bundles: int
    step: Step


NO_LABELS = Labels(
    np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_),
    np.empty(0), np.empty(0),
)  # fmt: skip


@compiled
def with_labelled_bundles(
    tables: Tables, labels: Labels, device: IntArray, priority: FloatArray
) -> tuple[Tables, IntArray, FloatArray]:
    """Returns the tables, devices and priorities with bundles, which come after all operators."""
    n, m, devices = len(device), len(tables.producer), len(tables.server)
    found = labelled_bundles(tables, labels, device)
    bundles = found.bundles
    if bundles == 0:
        return tables, device, priority
    bits = np.concatenate((tables.bits, np.zeros(bundles)))
    on = np.empty(bundles, dtype=np.int64)
    newest = np.full(bundles, -1, dtype=np.int64)
    for t in range(len(found.tensor)):
        k, e = found.bundle[t], found.tensor[t]
        if k >= 0 and newest[k] != e:
            newest[k] = e
            on[k] = device[tables.producer[e]]
            bits[m + k] += tables.bits[e]
    step = found.step
    seconds = np.empty((n + bundles, devices))
    seconds[:n] = tables.seconds
    sizes = bits[m:] / 8.0
    for k in range(bundles):
        for d in range(devices):
            seconds[n + k, d] = bits[m + k] * labels.copy_seconds_per_bit[d]
    nothing, new = np.zeros(bundles), np.arange(n, n + bundles)
    made = Tables(
        seconds, step.topological, np.concatenate((tables.producer, new)), bits,
        step.consumers_start, step.consumers, step.inputs_start, step.inputs, step.outputs_start,
        step.outputs, tables.server, tables.discipline, tables.lends, tables.nic_rates,
        tables.limit_groups, tables.limit_capacity, tables.line_rates, tables.neighbour_rates,
        tables.worthwhile, tables.least_rates, tables.path_setup, tables.path_rate,
        tables.paths_queue, tables.alone_setup, tables.alone_rate, tables.setup_seconds,
        tables.cuts_equally, tables.window_bits, tables.low_water_bits, tables.message_seconds,
        tables.message_seconds_per_bit,
        np.concatenate((tables.weight_bytes, nothing)),
        np.concatenate((tables.activation_bytes, sizes)),
        np.concatenate((tables.workspace_bytes, nothing)),
        np.concatenate((tables.is_view, np.zeros(bundles, dtype=np.bool_))),
        np.concatenate((tables.allocator, new)), np.concatenate((tables.static_bytes, sizes)),
        tables.memory_bytes,
    )  # fmt: skip
    # A bundle leaves as soon as the last of its tensors is made.
    urgent = np.full(bundles, np.inf)
    return made, np.concatenate((device, on)), np.concatenate((priority, urgent))


@compiled
def labelled_bundles(tables: Tables, labels: Labels, device: IntArray) -> Bundles:
    """The bundles of all groups of at least two tensors, except those that would wait for each
    other: of these, the ones go whose tensors are made in part when nothing else can start."""
    n = len(device)
    tensor, to, group, key = _travelling(tables, labels, device)
    bundle, count = _numbered(tables, labels, tensor, group, key)
    while True:
        step = _step_with(tables, device, tensor, to, bundle, count)
        reached = len(step.topological)
        if reached == n + count or count == 0:
            return Bundles(tensor, to, bundle, count, step)
        known = np.zeros(n + count, dtype=np.bool_)
        known[step.topological] = True
        number = np.full(count, -1, dtype=np.int64)
        kept = 0
        for k in range(count):
            some = False
            for p in range(step.inputs_start[n + k], step.inputs_start[n + k + 1]):
                some = some or known[tables.producer[step.inputs[p]]]
            if known[n + k] or not some:
                number[k] = kept
                kept += 1
        for t in range(len(bundle)):
            if bundle[t] >= 0:
                bundle[t] = number[bundle[t]]
        count = kept


@compiled
def _step_with(
    tables: Tables, device: IntArray, tensor: IntArray, to: IntArray, bundle: IntArray, count: int
) -> Step:
    n, m = len(device), len(tables.producer)
    consumers_start, consumers = _readers(tables, device, tensor, to, bundle, count)
    inputs_start, inputs = _inputs(consumers_start, consumers, n + count)
    outputs_start = np.empty(n + count + 1, dtype=np.int64)
    outputs_start[: n + 1] = tables.outputs_start
    for k in range(count):
        outputs_start[n + k + 1] = outputs_start[n + k] + 1
    outputs = np.concatenate((tables.outputs, np.arange(m, m + count)))
    topological = _sorted(
        inputs_start, outputs_start, outputs, consumers_start, consumers, tables.topological
    )
    return Step(
        topological, consumers_start, consumers, inputs_start, inputs, outputs_start, outputs
    )


@compiled
def _travelling(
    tables: Tables, labels: Labels, device: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The messages with a label, by tensor and destination: (tensor, destination, group)
    int64[...], and key int64[groups], ascending. A group is what one device sends another under one
    label: its key is (label * D + source) * D + destination."""
    devices, most = len(tables.server), len(tables.consumers)
    tensor, to = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    key_of = np.empty(most, dtype=np.int64)
    # 1: all readers there serve all; 2: some do not.
    kind = np.zeros(devices, dtype=np.int64)
    found = 0
    for e in range(len(tables.producer)):
        if (labels.label[e] < 0 and labels.waited[e] < 0) or tables.bits[e] == 0.0:
            continue
        a = device[tables.producer[e]]
        crosses = False
        for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
            c = tables.consumers[k]
            if device[c] != a:
                crosses = True
                kind[device[c]] = max(kind[device[c]], 1 if labels.serves_all[c] else 2)
        for b in range(devices if crosses else 0):
            if kind[b] > 0:
                label = labels.label[e] if kind[b] == 1 else labels.waited[e]
                if label >= 0:
                    tensor[found], to[found] = e, b
                    key_of[found] = (label * devices + a) * devices + b
                    found += 1
                kind[b] = 0
    key = np.unique(key_of[:found])
    return tensor[:found], to[:found], np.searchsorted(key, key_of[:found]), key


@compiled
def _numbered(
    tables: Tables, labels: Labels, tensor: IntArray, group: IntArray, key: IntArray
) -> tuple[IntArray, int]:
    """int64[...]: the bundle of each message, -1 for a tensor alone; and how many bundles there
    are. What one device sends several others is one bundle. An operator gives a bundle one
    tensor."""
    devices, groups = len(tables.server), len(key)
    count, mark = np.zeros(groups, dtype=np.int64), np.zeros(groups)
    maker = np.full(groups, -1, dtype=np.int64)
    bundle = np.full(len(tensor), -1, dtype=np.int64)
    of_group = np.full(groups, -1, dtype=np.int64)
    again = np.zeros(len(tensor), dtype=np.bool_)
    for t in range(len(tensor)):
        p, made = group[t], tables.producer[tensor[t]]
        if maker[p] == made:
            again[t] = True
        else:
            maker[p] = made
            count[p] += 1
            mark[p] += labels.mark[tensor[t]]
    bundles = 0
    for t in range(len(tensor)):
        p = group[t]
        if count[p] < 2 or again[t]:
            continue
        if of_group[p] < 0:
            # The groups of one label and source are neighbours.
            alike = key[p] // devices
            for step in (-1, 1):
                q = p + step
                while 0 <= q < groups and key[q] // devices == alike:
                    if of_group[q] >= 0 and count[q] == count[p] and mark[q] == mark[p]:
                        of_group[p] = of_group[q]
                    q += step
        if of_group[p] < 0:
            of_group[p] = bundles
            bundles += 1
        bundle[t] = of_group[p]
    return bundle, bundles


@compiled
def _readers(
    tables: Tables, device: IntArray, tensor: IntArray, to: IntArray, bundle: IntArray, bundles: int
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """The consumers of all tensors, those of bundles last."""
    n, m, devices = len(device), len(tables.producer), len(tables.server)
    most = len(tables.consumers)
    start = np.zeros(m + bundles + 1, dtype=np.int64)
    consumers = np.empty(2 * most + len(tensor), dtype=np.int64)
    via = np.full(devices, -1, dtype=np.int64)
    by, reader = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    of_bundle = np.zeros(bundles + 1, dtype=np.int64)
    filled, brought, t = 0, 0, 0
    for e in range(m):
        begun = t
        while t < len(tensor) and tensor[t] == e:
            via[to[t]] = bundle[t]
            t += 1
        for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
            c = tables.consumers[k]
            if via[device[c]] < 0:
                consumers[filled] = c
                filled += 1
            else:
                by[brought], reader[brought] = via[device[c]], c
                of_bundle[via[device[c]] + 1] += 1
                brought += 1
        for u in range(begun, t):
            k = bundle[u]
            if k >= 0:
                again = False
                for v in range(begun, u):
                    again = again or bundle[v] == k
                if not again:
                    consumers[filled] = n + k
                    filled += 1
        for u in range(begun, t):
            via[to[u]] = -1
        start[e + 1] = filled
    for k in range(bundles):
        of_bundle[k + 1] += of_bundle[k]
    place = of_bundle.copy()
    in_turn = np.empty(brought, dtype=np.int64)
    for u in range(brought):
        in_turn[place[by[u]]] = reader[u]
        place[by[u]] += 1
    newest = np.full(n, -1, dtype=np.int64)
    for k in range(bundles):
        for u in range(of_bundle[k], of_bundle[k + 1]):
            c = in_turn[u]
            if newest[c] != k:
                newest[c] = k
                consumers[filled] = c
                filled += 1
        start[m + k + 1] = filled
    return start, consumers[:filled].copy()


@compiled
def _inputs(
    consumers_start: IntArray, consumers: IntArray, operators: int
) -> tuple[IntArray, IntArray]:
    """The tensors that each operator reads, by number."""
    start = np.zeros(operators + 1, dtype=np.int64)
    for c in consumers:
        start[c + 1] += 1
    for i in range(operators):
        start[i + 1] += start[i]
    place = start[:-1].copy()
    inputs = np.empty(len(consumers), dtype=np.int64)
    for e in range(len(consumers_start) - 1):
        for k in range(consumers_start[e], consumers_start[e + 1]):
            inputs[place[consumers[k]]] = e
            place[consumers[k]] += 1
    return start, inputs


@compiled
def _sorted(
    inputs_start: IntArray, outputs_start: IntArray, outputs: IntArray, consumers_start: IntArray,
    consumers: IntArray, recorded: IntArray,
) -> IntArray:  # fmt: skip
    """A topological sort of the operators that do not wait for ever."""
    operators = len(inputs_start) - 1
    missing = np.empty(operators, dtype=np.int64)
    found = np.empty(operators, dtype=np.int64)
    filled = 0
    for i in range(operators):
        missing[i] = inputs_start[i + 1] - inputs_start[i]
    for i in recorded:
        if missing[i] == 0:
            found[filled] = i
            filled += 1
    taken = 0
    while taken < filled:
        i = found[taken]
        taken += 1
        for o in range(outputs_start[i], outputs_start[i + 1]):
            e = outputs[o]
            for k in range(consumers_start[e], consumers_start[e + 1]):
                missing[consumers[k]] -= 1
                if missing[consumers[k]] == 0:
                    found[filled] = consumers[k]
                    filled += 1
    return found[:filled]
