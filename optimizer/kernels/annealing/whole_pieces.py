"""Expands a decision about whole pieces of a step into a device for every operator."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.tables import Tables


class PieceTables(NamedTuple):
    """piece, micro_batch (-1: shared by several), unit int64[n]. Of units: first int64[U], an
    operator of each; heavy, those of shared operators with weights, the most bytes first; held
    float64[U] their bytes; read bool[U, micro-batches] which ones read them, or all; able bool[U,
    D]. shared int64[...]: the shared operators, sorted. rate
    float64[D]: that of the NICs of the device's server; preferred int64[D]: devices in the order in
    which they are tried for what its own device cannot run.
    """

    piece: IntArray
    micro_batch: IntArray
    unit: IntArray
    first: IntArray
    heavy: IntArray
    held: FloatArray
    read: BoolArray
    able: BoolArray
    shared: IntArray
    rate: FloatArray
    preferred: IntArray


@compiled
def expanded(tables: Tables, pieces: PieceTables, home: IntArray) -> IntArray:
    """int64[n]: operators of one micro-batch where home int64[pieces, micro-batches] says.

    A shared weight goes, with its unit, to one of the devices that run its piece for micro-batches
    that read it: the one that then holds least of such weights for its rate. Other shared
    operators go to what reads them, or else to what they read.
    """
    units, devices = len(pieces.first), len(pieces.rate)
    of_unit = np.full(units, -1, dtype=np.int64)
    for i in range(len(pieces.unit)):
        if pieces.micro_batch[i] >= 0:
            of_unit[pieces.unit[i]] = home[pieces.piece[i], pieces.micro_batch[i]]
    load = np.zeros(devices)
    for u in pieces.heavy:
        best = -1
        for m in range(home.shape[1]):
            if not pieces.read[u, m]:
                continue
            d = home[pieces.piece[pieces.first[u]], m]
            if best < 0:
                best = d
                continue
            now = (load[d] + pieces.held[u]) / pieces.rate[d]
            least = (load[best] + pieces.held[u]) / pieces.rate[best]
            if now < least or (now == least and d < best):
                best = d
        load[best] += pieces.held[u]
        of_unit[u] = best
    for k in range(len(pieces.shared) - 1, -1, -1):
        i = pieces.shared[k]
        if of_unit[pieces.unit[i]] < 0:
            of_unit[pieces.unit[i]] = _shared_reader(tables, pieces, of_unit, i)
    for i in pieces.shared:
        u = pieces.unit[i]
        for k in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
            if of_unit[u] < 0:
                of_unit[u] = of_unit[pieces.unit[tables.producer[tables.inputs[k]]]]
        if of_unit[u] < 0:
            of_unit[u] = home[pieces.piece[i], 0]
    for u in range(units):
        if not pieces.able[u, of_unit[u]]:
            for d in pieces.preferred:
                if pieces.able[u, d]:
                    of_unit[u] = d
                    break
    device = np.empty(len(pieces.unit), dtype=np.int64)
    for i in range(len(device)):
        device[i] = of_unit[pieces.unit[i]]
    return device


@compiled
def _shared_reader(tables: Tables, pieces: PieceTables, of_unit: IntArray, i: int) -> int:
    """The device of the first shared operator that reads operator i and has one; -1: none."""
    for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
        e = tables.outputs[o]
        for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
            c = tables.consumers[k]
            if pieces.micro_batch[c] < 0 and of_unit[pieces.unit[c]] >= 0:
                return int(of_unit[pieces.unit[c]])
    return -1
