"""The event loop for first-come channels of fixed rates.

Each (source device, destination device, rail) is a channel. A message queues on its channels when
its producer finishes, so that its arrival is known at once; an event is the start of one operator.
The loop runs in three ways. For each, numba leaves out what stands under `if X is not None` for an
X that is None:

the whole step  by priority, or strictly in the order that is given
with messages   the same, and `messages` is filled
a changed part  `old` is a schedule and `start` is None: only the events that a change of the
                placement can alter are run again, from the last mark before them until everything
                is as it was, or until the step is certain to exceed a limit
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.heap import pop, push
from placewire.optimizer.kernels.simulation.transfers import send
from placewire.optimizer.kernels.tables import Tables

# The arguments of run_first_come from `slots` on where the whole step is run.
NOT_CHANGED = (None, None, None, None, None, None, None, 0, 0, np.inf, 0)


class MessageLog(NamedTuple):
    """Messages in the order in which they were sent: tensor and destination device int64[M], and
    the times of each message's parts float64[M, R], -1 on rails that carry none. The times of a
    message past the NICs stand in column 0."""

    tensor: IntArray
    device: IntArray
    part_start: FloatArray
    part_finish: FloatArray


class MarkedSchedule(NamedTuple):
    """A schedule that can be continued from its middle.

    order int64[n]: the operator that each event starts; place int64[n]: its inverse; ready
    int64[n]: for each event, the event after which the times of all its operator's inputs were
    known (-1: from the beginning). start, finish float64[n]; input_at float64[inputs]: when each
    input was there, in the order of tables.inputs.

    There is a mark every `every` events; mark k stands before event k * every. At each mark, idle
    float64[K, D] is when each device was done, and free float64[K, D, D, R] what `send` keeps of
    each channel.
    Of the events from each mark to the next, ends float64[K] is the last finish, and work
    float64[K, D] the seconds on each device.
    """

    order: IntArray
    place: IntArray
    ready: IntArray
    start: FloatArray
    finish: FloatArray
    input_at: FloatArray
    every: int
    idle: FloatArray
    free: FloatArray
    ends: FloatArray
    work: FloatArray


class Scratch(NamedTuple):
    """Working space of one run of a changed part; the next run overwrites it.

    The heaps of device d begin at offsets[d]. turn int64[n]: the run that last filled an operator's
    entries; moved int64[n]: the last run whose move contained the operator.
    """

    offsets: IntArray
    later_key: FloatArray
    later_item: IntArray
    ready_key: FloatArray
    ready_item: IntArray
    missing: IntArray
    inputs_at: FloatArray
    ready_after: IntArray
    unlike: IntArray
    turn: IntArray
    moved: IntArray
    seen: IntArray
    arrival: FloatArray
    part_start: FloatArray
    part_finish: FloatArray


@compiled
def device_offsets(device: IntArray, devices: int) -> IntArray:
    """int64[D + 1]: where each device's operators begin when grouped by device."""
    offsets = np.zeros(devices + 1, dtype=np.int64)
    for i in range(len(device)):
        offsets[device[i] + 1] += 1
    for d in range(devices):
        offsets[d + 1] += offsets[d]
    return offsets


@compiled
def run_first_come(
    tables: Tables, lasts: FloatArray, device: IntArray, priority: FloatArray, channels: FloatArray,
    in_order_of_arrival: bool, order: Any, start: Any, finish: Any, sent: Any, position: Any,
    messages: Any, slots: Any, tails: Any, old: Any, new: Any, scratch: Any, load: Any, op: Any,
    count: int, first: int, limit: float, turn: int,
) -> tuple[float, int, int]:  # fmt: skip
    """List scheduling: a free device runs the ready operator of largest priority.

    lasts float64[n]: what occupation() returns. channels float64[D, D, R]. in_order_of_arrival: a
    free device runs the operator that became ready first instead, ties by number. order: None, or
    int64[n] grouped by device; where it has entries, each device runs its operators in that order
    and waits where it must.

    The device whose next start is earliest is served first. No operator that is not scheduled yet
    starts earlier, so all operators that can be ready by then are known. A channel has one source
    device, so its messages queue in the order in which that device finishes operators.

    The whole step: fills start, finish float64[n], sent float64[m] (when a tensor has arrived
    everywhere; 0 where it is not sent), position int64[n] on its device, and `messages`. Returns
    (step seconds, number of messages, number of operators that were run). That number is below n
    where orders wait for each other for ever.

    A changed part: device and priority are those after the move, op[:count] are the operators that
    it changed, and first is the first event of `old` that may turn out differently. load
    float64[D]: the seconds of all operators on each device; tails float64[n]: the shortest time
    from an operator's finish to the step's end; slots: what consumer_slots returns; turn grows with
    every call. Returns (step seconds, first event run, first event not run); the events between are
    in `new`. The step is inf where it exceeds `limit`, or where a message never arrives.

    What one of these ways does not use is None; hence the type Any.
    """
    n, devices = len(device), len(tables.server)
    rails = channels.shape[2]
    later, ready = np.zeros(devices, dtype=np.int64), np.zeros(devices, dtype=np.int64)
    step, begin, sent_messages = 0.0, 0, 0
    # For each device, the heap `later` holds the operators whose inputs' arrival is known, by that
    # time; the heap `ready` holds those whose inputs are there, by -priority.
    if start is not None:
        offsets = device_offsets(device, devices)
        later_key, later_item = np.empty(n), np.empty(n, dtype=np.int64)
        ready_key, ready_item = np.empty(n), np.empty(n, dtype=np.int64)
        missing, inputs_at = np.empty(n, dtype=np.int64), np.zeros(n)
        done, idle_at = np.zeros(devices, dtype=np.int64), np.zeros(devices)
        free = np.zeros((devices, devices, rails))
        seen, arrival = np.full(devices, -1, dtype=np.int64), np.empty(devices)
        part_start, part_finish = np.empty(rails), np.empty(rails)
        for e in range(len(sent)):
            sent[e] = 0.0
        for i in range(n):
            missing[i] = tables.inputs_start[i + 1] - tables.inputs_start[i]
        if order is not None:
            # An operator waits for the one before it in the order as for one more input.
            following = np.full(n, -1, dtype=np.int64)
            for k in range(1, len(order)):
                if device[order[k]] == device[order[k - 1]]:
                    following[order[k - 1]] = order[k]
                    missing[order[k]] += 1
        for i in range(n):
            if missing[i] == 0:
                d = device[i]
                later[d] = push(later_key, later_item, offsets[d], later[d], 0.0, i)
    if old is not None:
        mark = min(first // old.every, len(old.ends) - 1)
        begin = mark * old.every
        idle_at, left = old.idle[mark].copy(), load.copy()
        for k in range(mark):
            step = max(step, old.ends[k])
            for d in range(devices):
                left[d] -= old.work[k, d]
        bar = limit * (1.0 + 1e-9)
        for d in range(devices):
            if idle_at[d] + left[d] > bar:
                return np.inf, begin, begin
        free = old.free[mark].copy()
        offsets, seen, arrival = scratch.offsets, scratch.seen, scratch.arrival
        later_key, later_item = scratch.later_key, scratch.later_item
        ready_key, ready_item = scratch.ready_key, scratch.ready_item
        missing, inputs_at = scratch.missing, scratch.inputs_at
        part_start, part_finish = scratch.part_start, scratch.part_finish
        for d in range(devices):
            seen[d] = -1
        for m in range(count):
            scratch.moved[op[m]] = turn
        for q in range(begin, n):
            if old.ready[q] >= begin:
                continue
            i = old.order[q]
            at = 0.0
            for k in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
                at = max(at, old.input_at[k])
            scratch.turn[i] = turn
            scratch.unlike[i] = 0
            scratch.ready_after[i] = old.ready[q]
            d = device[i]
            later[d] = push(later_key, later_item, offsets[d], later[d], at, i)
        # At a mark the state can be as in `old` only if `old`, too, ran all operators since `begin`
        # before that mark. same: of how many that holds; earlier[k]: of how many more it will hold
        # at mark k + 1.
        earlier = np.zeros(len(old.ends) + 1, dtype=np.int64)
        same, open_unlike, changed = 0, 0, 0
        since_end = 0.0
        since_work = np.zeros(devices)
    for q in range(begin, n):
        if old is not None:  # noqa: SIM102  (so that numba leaves it out)
            if q % old.every == 0:
                at_mark = q // old.every
                if q > begin:
                    new.ends[at_mark - 1] = since_end
                    for d in range(devices):
                        new.work[at_mark - 1, d] = since_work[d]
                        since_work[d] = 0.0
                    since_end = 0.0
                    same += earlier[at_mark - 1]
                    if same == q - begin and open_unlike == 0 and changed == count:
                        alike = True
                        for a in range(devices):
                            alike = alike and idle_at[a] == old.idle[at_mark, a]
                            for b in range(devices):
                                for r in range(rails):
                                    alike = alike and free[a, b, r] == old.free[at_mark, a, b, r]
                        if alike:
                            for k in range(at_mark, len(old.ends)):
                                step = max(step, old.ends[k])
                            return step if step <= limit else np.inf, begin, q
                for a in range(devices):
                    new.idle[at_mark, a] = idle_at[a]
                    for b in range(devices):
                        for r in range(rails):
                            new.free[at_mark, a, b, r] = free[a, b, r]
        chosen, now = -1, np.inf
        for d in range(devices):
            if ready[d] > 0:
                at = idle_at[d]
            elif later[d] > 0:
                at = max(idle_at[d], later_key[offsets[d]])
            else:
                continue
            if chosen < 0 or at < now:
                chosen, now = d, at
        if chosen < 0:
            return step, sent_messages, q
        a, base = chosen, offsets[chosen]
        i = -1
        while later[a] > 0 and later_key[base] <= now:
            item = later_item[base]
            later[a] = pop(later_key, later_item, base, later[a])
            if in_order_of_arrival:
                i = item
                break
            if ready[a] == 0 and (later[a] == 0 or later_key[base] > now):
                i = item  # the only choice: no need to queue it
            else:
                ready[a] = push(ready_key, ready_item, base, ready[a], -priority[item], item)
        if i < 0:
            i = ready_item[base]
            ready[a] = pop(ready_key, ready_item, base, ready[a])
        seconds = lasts[i]
        end = now + seconds
        if start is not None:
            start[i], finish[i] = now, end
            position[i] = done[a]
            done[a] += 1
            if order is not None:
                c = following[i]
                if c >= 0:
                    inputs_at[c] = max(inputs_at[c], end)
                    missing[c] -= 1
                    if missing[c] == 0:
                        later[a] = push(later_key, later_item, base, later[a], inputs_at[c], c)
        if old is not None:
            if now + left[a] > bar:
                return np.inf, begin, q
            left[a] -= seconds
            if end + tails[i] > bar:
                return np.inf, begin, q
            new.order[q] = i
            new.ready[q] = scratch.ready_after[i]
            new.start[i] = now
            new.finish[i] = end
            since_end = max(since_end, end)
            since_work[a] += seconds
            was = old.place[i] // old.every
            if was < q // old.every:
                same += 1
            else:
                earlier[was] += 1
            open_unlike -= scratch.unlike[i]
            if scratch.moved[i] == turn:
                changed += 1
        idle_at[a] = end
        step = max(step, end)
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                c = tables.consumers[k]
                b = device[c]
                at = end
                if b != a and tables.bits[e] > 0.0:
                    if seen[b] != e:
                        seen[b] = e
                        if messages is not None:
                            part_start = messages.part_start[sent_messages]
                            part_finish = messages.part_finish[sent_messages]
                            messages.tensor[sent_messages] = e
                            messages.device[sent_messages] = b
                            sent_messages += 1
                        arrival[b] = send(
                            tables.path_setup[a, b], tables.path_rate[a, b], tables.paths_queue,
                            tables.setup_seconds, tables.cuts_equally, channels, free, a, b,
                            tables.bits[e], end, part_start, part_finish,
                        )  # fmt: skip
                        if sent is not None:
                            sent[e] = max(sent[e], arrival[b])
                    at = arrival[b]
                if old is not None:
                    if scratch.turn[c] != turn:
                        scratch.turn[c] = turn
                        scratch.unlike[c] = 0
                        missing[c] = 0
                        inputs_at[c] = 0.0
                        for p in range(tables.inputs_start[c], tables.inputs_start[c + 1]):
                            if old.place[tables.producer[tables.inputs[p]]] >= begin:
                                missing[c] += 1
                            else:
                                inputs_at[c] = max(inputs_at[c], old.input_at[p])
                    slot = slots[k]
                    new.input_at[slot] = at
                    if at != old.input_at[slot]:
                        scratch.unlike[c] += 1
                        open_unlike += 1
                inputs_at[c] = max(inputs_at[c], at)
                missing[c] -= 1
                if missing[c] == 0:
                    if old is not None:
                        scratch.ready_after[c] = q
                    later[b] = push(later_key, later_item, offsets[b], later[b], inputs_at[c], c)
    if old is not None:
        last = (n - 1) // old.every
        if begin < n:
            new.ends[last] = since_end
            for d in range(devices):
                new.work[last, d] = since_work[d]
        return step if step <= limit else np.inf, begin, n
    return step, sent_messages, n
