"""Collectives over all devices, in steps that PeerGraph.collective adds beside each device.

A sum is a ring, as NCCL and gloo make it for many bytes. What is gathered or scattered goes
straight to each device, or round a ring, in which a NIC sends a part once and not once for every
device behind it. Straight sends pay the set-up latency once, as NCCL's trees for few bytes nearly
do; over TCP, where flows that meet do not share NICs exactly, they took 6 to 13 % longer than a
ring (four servers, five models, `benchmarks.job --items 11`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.optimizer.peers.beside_devices import PeerGraph


def all_reduce(
    made: PeerGraph, name: str, ready: Mapping[int, str], size: int, done: Mapping[int, str]
) -> None:
    """Sums `size` bytes over all devices: each chunk goes round once to be summed, and once more to
    be known to all. ready, done: by device, the operators before and after."""
    count = len(ready)
    for first in range(count):
        path = [(first + step) % count for step in range(1, 2 * count - 1)]
        chunk = f"{name}, chunk {first}"
        passed = _along(made, chunk, ready[first], path, max(1, size // count))
        for step, (d, here) in enumerate(zip(path, passed, strict=True), start=1):
            if step < count:
                made.then(ready[d], [here])
            if step >= count - 1:
                made.then(here, [done[d]])


def all_gather(
    made: PeerGraph,
    name: str,
    parts: Mapping[int, str],
    size: int,
    whole: Mapping[int, str],
    *,
    ring: bool,
) -> None:
    """parts: by device, the operator that has its part of `size` bytes. whole: by device, the one
    that waits for all parts."""
    count = len(parts)
    for first, part in parts.items():
        made.then(part, [whole[first]])
        path = [(first + step) % count for step in range(1, count)]
        if not ring:
            made.send(part, [whole[d] for d in path], size // count)
            continue
        for d, here in zip(path, _along(made, name, part, path, size // count), strict=True):
            made.then(here, [whole[d]])


def reduce_scatter(
    made: PeerGraph,
    name: str,
    ready: Mapping[int, str],
    size: int,
    own: Mapping[int, str],
    *,
    ring: bool,
) -> None:
    """Sums `size` bytes over all devices; own: by device, the operator that gets its part of it."""
    count = len(ready)
    for to, last in own.items():
        made.then(ready[to], [last])
        path = [(to + step) % count for step in range(1, count + 1)]
        if not ring:
            for d in path[:-1]:
                made.send(ready[d], [last], size // count)
            continue
        passed = _along(made, name, ready[path[0]], path[1:], size // count)
        for d, here in zip(path[1:], passed, strict=True):
            made.then(ready[d], [here])
        made.then(passed[-1], [last])


def _along(made: PeerGraph, name: str, start: str, path: Sequence[int], size: int) -> list[str]:
    """By device of the path, the operator that has got the bytes and sends them on."""
    found = []
    for step, d in enumerate(path, start=1):
        found.append(made.collective(f"{name}, step {step} of {start}@{d}", d))
        made.send(start if step == 1 else found[-2], [found[-1]], size)
    return found
