"""Models operator times of named devices by a roofline, without hardware.

    seconds = launch latency + max(FLOPs / (peak x reached), bytes / (bandwidth x reached))

An operator without FLOPs and traffic (a view, a parameter) takes no time. The kind of an operator
follows from its type, the name of its kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.profile.devices import DEVICES, Kind, ModelledDevice

_KINDS: dict[Kind, set[str]] = {
    "matmul": {
        "mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "linear", "matmul", "gemm", "einsum",
        "matmulinteger", "qlinearmatmul", "lstm", "gru", "rnn",
    },
    "random": {"native_dropout", "bernoulli", "rand", "randn", "rand_like"},
    "reduction": {
        "sum", "mean", "amax", "amin", "var", "var_mean", "max", "min", "argmax", "cumsum",
    },
    "update": {"update"},
    "gather": {
        "embedding", "embedding_dense_backward", "index", "_unsafe_index", "index_put",
        "_unsafe_index_put", "index_select", "gather", "scatter", "index_add", "scatter_add",
        "gatherelements", "gathernd", "scatterelements", "scatternd",
    },
}  # fmt: skip
# Where no whole name decides, the first of these parts that the name contains does.
_PARTS: tuple[tuple[str, Kind], ...] = (
    ("attention", "attention"),
    ("conv", "convolution"),
    ("_fft", "transform"),
    ("pool", "window"),
    ("dropout_backward", "elementwise"),
    ("norm", "reduction"),
    ("softmax", "reduction"),
    ("loss", "reduction"),
    ("reduce", "reduction"),
)


@cache
def kind_of(operator_type: str) -> Kind:
    """operator_type: as capture writes it, like `aten.mm.default` or `update`, or as ONNX does."""
    name = operator_type.removeprefix("aten.").split(".")[0].lower()
    for kind, names in _KINDS.items():
        if name in names:
            return kind
    return next((kind for part, kind in _PARTS if part in name), "elementwise")


def modelled_seconds(graph: OperatorGraph, device: ModelledDevice) -> FloatArray:
    """Returns float64[n]. Raises ValueError where the graph has neither FLOPs nor traffic."""
    if graph.operator_count and not (graph.flops.any() or graph.traffic_bytes.any()):
        raise ValueError(
            f"graph {graph.name!r} has neither flops nor traffic_bytes, from which times are "
            "modelled; capture the model again (most imported graphs have times of their own)"
        )
    kinds = [kind_of(name) for name in graph.types]
    peaks: dict[Kind, float] = {"convolution": device.convolution_flops}
    if graph.notes.get("half"):
        peaks = dict.fromkeys(("matmul", "convolution", "attention"), device.half_flops)
    peak = np.array([peaks.get(kind, device.peak_flops) for kind in kinds])
    compute = np.array([device.reached[kind].compute for kind in kinds])
    bandwidth = np.array([device.reached[kind].bandwidth for kind in kinds])
    busy: FloatArray = np.maximum(
        graph.flops / (peak * compute),
        graph.traffic_bytes / (device.bytes_per_second * bandwidth),
    )
    works = (graph.flops > 0) | (graph.traffic_bytes > 0)
    return np.where(works, device.launch_seconds + busy, 0.0)


def with_modelled_seconds(graph: OperatorGraph, names: Sequence[str]) -> OperatorGraph:
    """Returns the graph with these device types beside its own. Raises as modelled_seconds()."""
    known = {t: graph.seconds[:, k] for k, t in enumerate(graph.device_types)}
    return graph.with_seconds(known | {n: modelled_seconds(graph, DEVICES[n]) for n in names})


@dataclass(frozen=True)
class ModelError:
    """How modelled times differ from measured ones. The sums are over all operators, the other
    figures over the `operators` that take time in both. ratio_percentiles: modelled / measured at
    10, 50 and 90 %."""

    modelled_sum_seconds: float
    measured_sum_seconds: float
    operators: int
    median_absolute_relative_error: float
    ratio_percentiles: tuple[float, float, float]
    rank_correlation: float

    @property
    def sum_error(self) -> float:
        return self.modelled_sum_seconds / self.measured_sum_seconds - 1


def model_error(modelled: FloatArray, measured: FloatArray) -> ModelError:
    """Takes float64[n] each. Raises ValueError where fewer than two operators take time in both."""
    both = (modelled > 0) & (measured > 0) & np.isfinite(measured)
    if both.sum() < 2:
        raise ValueError("fewer than two operators have both a modelled and a measured time")
    ratio = modelled[both] / measured[both]
    low, middle, high = np.percentile(ratio, [10, 50, 90]).tolist()
    return ModelError(
        modelled_sum_seconds=float(modelled.sum()),
        measured_sum_seconds=float(measured[np.isfinite(measured)].sum()),
        operators=int(both.sum()),
        median_absolute_relative_error=float(np.median(np.abs(ratio - 1))),
        ratio_percentiles=(low, middle, high),
        rank_correlation=_correlation(_ranks(modelled[both]), _ranks(measured[both])),
    )


def error_lines(graph: OperatorGraph, names: Sequence[str], measured: str) -> list[str]:
    """Returns what `--against` prints. Raises ValueError where the graph has no such times."""
    if measured not in graph.device_types:
        known = ", ".join(graph.device_types) or "none"
        raise ValueError(f"the graph has no times for {measured!r}; it has times for {known}")
    column = graph.seconds[:, graph.device_types.index(measured)]
    lines = []
    for name in names:
        error = model_error(modelled_seconds(graph, DEVICES[name]), column)
        low, middle, high = error.ratio_percentiles
        lines += [
            f"{name} modelled against {measured}: sum {error.modelled_sum_seconds * 1e3:.3f} of "
            f"{error.measured_sum_seconds * 1e3:.3f} ms ({error.sum_error:+.1%})",
            f"  {error.operators} operators take time in both: median absolute relative error "
            f"{error.median_absolute_relative_error:.0%},",
            f"  modelled / measured {low:.2f} / {middle:.2f} / {high:.2f} at 10 / 50 / 90 %, rank "
            f"correlation {error.rank_correlation:.2f}",
        ]
    return lines


def _ranks(values: FloatArray) -> FloatArray:
    """Returns the place of each value in ascending order; equal values share the mean place."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    last: FloatArray = np.cumsum(count).astype(np.float64)
    ranks: FloatArray = (last - (count - 1) / 2)[group]
    return ranks


def _correlation(a: FloatArray, b: FloatArray) -> float:
    """Returns 0 where one of them does not vary."""
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / norm if norm > 0 else 0.0
