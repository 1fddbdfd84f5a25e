"""Named devices as the cost model sees them: peaks of data sheets, and what kernels reach of them.

Peaks are float32 as PyTorch runs it by default: matrix products on the ordinary float32 units
(`torch.backends.cuda.matmul.allow_tf32` is off), convolutions on tensor cores in TF32 where there
are any (`torch.backends.cudnn.allow_tf32` is on). Dense figures, never those with sparsity.

    rtx3070    NVIDIA Ampere GA102 GPU Architecture whitepaper V2, appendix A: FP32 20.3 TFLOP/s,
               TF32 tensor 20.3, 448 GB/s
    rtx4080s   GeForce RTX 4080 family specifications: 10,240 cores at 2.55 GHz = 52.2 TFLOP/s,
               736 GB/s; TF32 tensor as FP32 (NVIDIA Ada GPU Architecture whitepaper, appendix A)
    t4         NVIDIA T4 Tensor Core GPU data sheet: FP32 8.1 TFLOP/s, 320 GB/s; no TF32
    v100       NVIDIA V100 Tensor Core GPU data sheet, SXM2: FP32 15.7 TFLOP/s, 900 GB/s; no TF32
    a100       NVIDIA A100 Tensor Core GPU data sheet, SXM 80 GB: FP32 19.5 TFLOP/s, TF32 156,
               2,039 GB/s
    h100       NVIDIA H100 Tensor Core GPU data sheet, SXM: FP32 67 TFLOP/s, TF32 494.5 (989 with
               sparsity), 3.35 TB/s
    h200       NVIDIA H200 Tensor Core GPU data sheet, SXM: computes as h100, 4.8 TB/s
    cpu-core   one core with AVX2 and two FMA units (32 FLOPs a cycle) at 3.2 GHz = 102 GFLOP/s,
               and 25 GB/s, about what one core of a current server draws from caches and memory

What kernels reach is no vendor's figure. For GPUs the fractions are rounded estimates for layers of
the size that the example models have, not measurements; the launch latency is what each of a chain
of small kernels costs. Those of cpu-core were set by hand against profiles of the example models on
one core (`optimizer profile GRAPH --device cpu-core --against cpu` says how well they fit others).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "matmul", "convolution", "attention", "elementwise", "random", "reduction", "window", "gather",
    "transform", "update",
]  # fmt: skip


@dataclass(frozen=True)
class Reached:
    """Fractions of the device's peaks that kernels of one kind reach."""

    compute: float
    bandwidth: float


@dataclass(frozen=True)
class ModelledDevice:
    """peak_flops and convolution_flops per second; reached by kind of operator."""

    name: str
    peak_flops: float
    convolution_flops: float
    bytes_per_second: float
    launch_seconds: float
    reached: Mapping[Kind, Reached]


_GPU: Mapping[Kind, Reached] = {
    "matmul": Reached(0.75, 0.8),
    "convolution": Reached(0.5, 0.7),
    "attention": Reached(0.5, 0.7),
    "elementwise": Reached(0.5, 0.8),
    "random": Reached(0.2, 0.7),
    "reduction": Reached(0.3, 0.65),
    "window": Reached(0.2, 0.5),
    "gather": Reached(0.2, 0.4),
    "transform": Reached(0.2, 0.6),
    "update": Reached(0.5, 0.8),
}
_CPU: Mapping[Kind, Reached] = {
    "matmul": Reached(0.4, 0.8),
    "convolution": Reached(0.7, 0.6),
    "attention": Reached(0.3, 0.6),
    "elementwise": Reached(0.05, 0.8),
    "random": Reached(0.012, 0.5),
    "reduction": Reached(0.03, 0.5),
    "window": Reached(0.003, 0.5),
    "gather": Reached(0.05, 0.3),
    "transform": Reached(0.1, 0.4),
    "update": Reached(0.2, 0.8),
}


def _gpu(name: str, peak: float, convolution: float, bandwidth: float, launch: float) -> None:
    DEVICES[name] = ModelledDevice(name, peak, convolution, bandwidth, launch, _GPU)


DEVICES: dict[str, ModelledDevice] = {}
_gpu("rtx3070", 20.3e12, 20.3e12, 448e9, 4e-6)
_gpu("rtx4080s", 52.2e12, 52.2e12, 736e9, 4e-6)
_gpu("t4", 8.1e12, 8.1e12, 320e9, 5e-6)
_gpu("v100", 15.7e12, 15.7e12, 900e9, 5e-6)
_gpu("a100", 19.5e12, 156e12, 2039e9, 4e-6)
_gpu("h100", 67e12, 494.5e12, 3350e9, 4e-6)
_gpu("h200", 67e12, 494.5e12, 4800e9, 4e-6)
DEVICES["cpu-core"] = ModelledDevice("cpu-core", 102e9, 102e9, 25e9, 4e-6, _CPU)
