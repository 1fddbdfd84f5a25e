"""The operators that a backend runs as one: the rules R of Moirai's GCOF (section III-B).

A rule is an ordered list of operator kinds. EIGEN has the rules of table I (convolution, batch
norm, addition, relu), which the paper gives as examples, and products with a bias and relu, which
TensorFlow fuses over Eigen's contractions. INDUCTOR follows torch's compiler: elementwise operators
and views that follow one another are one kernel, which may end in the reduction that reads them, of
at most 64 operators; products and convolutions are calls of a library and fuse with nothing.
Unlike inductor itself, these rules do not compare shapes.

An operator's kind follows from its type, as ATen, ONNX or TensorFlow names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Kinds = tuple[str, ...]

_NAMESPACES = ("aten", "prims")


@dataclass(frozen=True)
class FusionRules:
    """kind_of: the kind of each plain type name. sequences: the listed rules. Any run of up to
    `longest` operators of `run` kinds is a rule too, and may end in one of an `end` kind."""

    backend: str
    kind_of: Mapping[str, str]
    sequences: tuple[Kinds, ...] = ()
    run: frozenset[str] = frozenset()
    end: frozenset[str] = frozenset()
    longest: int = 0

    def kind(self, operator_type: str) -> str | None:
        """`aten.relu_.default`, `Relu` and `relu` are one kind; None for types without a rule."""
        return self.kind_of.get(plain_type(operator_type))

    def is_rule(self, kinds: Kinds) -> bool:
        return kinds in self.sequences or (
            2 <= len(kinds) <= self.longest
            and self.run.issuperset(kinds[:-1])
            and kinds[-1] in self.run | self.end
        )

    def is_part(self, kinds: Kinds) -> bool:
        """Whether the kinds are a rule, or follow one another in a longer one."""
        size = len(kinds)
        return self.is_rule(kinds) or any(
            rule[k : k + size] == kinds
            for rule in self.sequences
            for k in range(len(rule) - size + 1)
        )


def plain_type(operator_type: str) -> str:
    """The letters and digits of the type in lower case, without ATen's namespace and overload."""
    parts = operator_type.split(".")
    name = parts[1] if len(parts) > 1 and parts[0] in _NAMESPACES else operator_type
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _kinds(**names: str) -> Mapping[str, str]:
    """kind="several type names" -> {"type name": "kind"}"""
    return {name: kind for kind, several in names.items() for name in several.split()}


EIGEN = FusionRules(
    backend="Eigen",
    kind_of=_kinds(
        conv="conv conv1d conv2d conv3d convolution depthwiseconv2dnative",
        bn="bn batchnorm batchnormalization cudnnbatchnorm fusedbatchnorm fusedbatchnormv2 "
        "fusedbatchnormv3 nativebatchnorm nativebatchnormlegit nativebatchnormlegitfunctional "
        "nativebatchnormlegitnotraining",
        relu="relu",
        add="add addv2 biasadd",
        product="bmm matmul mm",
        biased_product="addmm gemm linear",
    ),
    sequences=(
        ("conv", "bn"),
        ("conv", "bn", "relu"),
        ("conv", "bn", "add", "relu"),
        ("product", "add"),
        ("product", "add", "relu"),
        ("biased_product", "relu"),
    ),
)

INDUCTOR = FusionRules(
    backend="inductor",
    kind_of=_kinds(
        elementwise="abs add addv2 biasadd cast ceil clamp clampmax clampmin clip clone "
        "convertelementtype copy cos div divide dropout elu eq equal erf exp expm1 floor ge "
        "gelu gelubackward greater gt hardsigmoid hardswish hardtanh identity le leakyrelu "
        "less log log1p logicaland logicalnot logicalor lt masked maskedfill maximum minimum "
        "mul multiply nativedropout nativedropoutbackward ne neg pow realdiv reciprocal relu "
        "relugrad round rsqrt rsub select where selectv2 sigmoid sigmoidbackward sign "
        "silu silubackward sin softplus sqrt square squareddifference sub subtract tanh "
        "tanhbackward tanhgrad thresholdbackward tocopy",
        view="alias asstrided detach expand expanddims flatten permute reshape squeeze t "
        "transpose unsafeview unsqueeze view",
        reduction="all amax amin any argmax argmin max mean min prod reducemax reducemean "
        "reducemin reduceprod reducesum std sum var varmean softmax logsoftmax "
        "nativelayernorm layernorm layernormalization safesoftmax",
    ),
    run=frozenset({"elementwise", "view"}),
    end=frozenset({"reduction"}),
    longest=64,
)
