"""Named devices for the cost model: the peaks of their data sheets, and what kernels reach of them.

Peaks are float32 as PyTorch runs it by default: matrix products on the ordinary float32 units
(`torch.backends.cuda.matmul.allow_tf32` is off), convolutions on tensor cores in TF32 where there
are any (`torch.backends.cudnn.allow_tf32` is on). In half precision, which a capture with `--half`
asks for, products and convolutions run on tensor cores that add up in float32, where there are any.
Dense figures, never those with sparsity.

What kernels reach is no vendor's figure. For GPUs the fractions are rounded estimates for layers of
the size that the example models have, not measurements; so is the launch latency, which no data
sheet states: what each kernel in a chain of small ones costs. The fractions of cpu-core were set by
hand against profiles of the example models on one core (`optimizer profile GRAPH --device cpu-core
--against cpu` shows how well they fit other profiles).
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
    """peak_flops, convolution_flops, half_flops: FLOPs per second in float32, of convolutions in
    it, and of products and convolutions in half precision. reached: by kind of operator."""

    name: str
    peak_flops: float
    convolution_flops: float
    half_flops: float
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


_ALL = (
    # NVIDIA Ampere GA102 GPU Architecture whitepaper V2, appendix A. The 3060 Ti has the same chip:
    # GeForce RTX 3060 Ti specifications, 4,864 cores at 1.665 GHz and 14 Gbit/s over 256 bits.
    ModelledDevice("rtx3070", 20.3e12, 20.3e12, 40.6e12, 448e9, 4e-6, _GPU),
    ModelledDevice("rtx3060ti", 16.2e12, 16.2e12, 32.4e12, 448e9, 4e-6, _GPU),
    # GeForce RTX 4080 family specifications: 10,240 cores at 2.55 GHz; TF32 is as fast as FP32
    # (NVIDIA Ada GPU Architecture whitepaper, appendix A).
    ModelledDevice("rtx4080s", 52.2e12, 52.2e12, 104.4e12, 736e9, 4e-6, _GPU),
    # NVIDIA Turing GPU Architecture whitepaper, appendix A, the reference card; no TF32.
    ModelledDevice("rtx2080ti", 13.4e12, 13.4e12, 53.8e12, 616e9, 5e-6, _GPU),
    # The "Tensor Core GPU data sheet" of each: T4 and V100 (SXM2), which have no TF32; A100 (SXM,
    # 80 GB); H100 and H200 (SXM), which compute alike: TF32 494.5 TFLOP/s, or 989 with sparsity.
    ModelledDevice("t4", 8.1e12, 8.1e12, 65e12, 320e9, 5e-6, _GPU),
    ModelledDevice("v100", 15.7e12, 15.7e12, 125e12, 900e9, 5e-6, _GPU),
    ModelledDevice("a100", 19.5e12, 156e12, 312e12, 2039e9, 4e-6, _GPU),
    ModelledDevice("h100", 67e12, 494.5e12, 989e12, 3350e9, 4e-6, _GPU),
    ModelledDevice("h200", 67e12, 494.5e12, 989e12, 4800e9, 4e-6, _GPU),
    # The data sheets of Tesla P4 and P100 (SXM2, with NVLink), which have no tensor cores. The P4
    # computes halves one by one, so slowly that cuBLAS computes their products in float32.
    ModelledDevice("p4", 5.5e12, 5.5e12, 5.5e12, 192e9, 5e-6, _GPU),
    ModelledDevice("p100", 10.6e12, 10.6e12, 21.2e12, 732e9, 5e-6, _GPU),
    # A core with AVX2 and two FMA units (32 FLOPs a cycle) at 3.2 GHz, and about the bandwidth that
    # one core of a current server draws from caches and memory; it computes halves in float32.
    ModelledDevice("cpu-core", 102e9, 102e9, 102e9, 25e9, 4e-6, _CPU),
    # Intel Core i9-12900K specifications: 8 cores of 32 FLOPs a cycle at 5.1 GHz and 8 of 16 at 3.9
    # GHz, all together, and two channels of DDR5-4800; what kernels reach is as of one core.
    ModelledDevice("i9-12900k", 1.8e12, 1.8e12, 1.8e12, 76.8e9, 4e-6, _CPU),
)
DEVICES: Mapping[str, ModelledDevice] = {device.name: device for device in _ALL}
