"""ONNX models as graphs: sizes, weights and FLOPs are right, and mistakes are named."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser
from torch import nn

from placewire.optimizer.cli import main
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph, tensor_rows
from placewire.optimizer.profile.modelled import kind_of, with_modelled_seconds
from placewire.optimizer.published.importers.onnx import read_onnx

HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
CONVOLUTIONS = (
    HEAD
    + """
g (float[batch, 3, 32, 32] x) => (float[batch, 10] y) {
  a = Conv<pads=[1,1,1,1]>(x, filter)
  r = Relu(a)
  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
  rows = Shape<start=0, end=1>(p)
  rest = Constant<value = int64[1] {-1}>()
  shape = Concat<axis=0>(rows, rest)
  f = Reshape(p, shape)
  mm = MatMul(f, classes)
  y = Add(mm, bias)
}
"""
)
WEIGHTS = {"filter": (16, 3, 3, 3), "classes": (4096, 10), "bias": (10,)}


def model(text: str, weights: Mapping[str, tuple[int, ...]] | None = None) -> ModelProto:
    made = parser.parse_model(text)
    for name, shape in (weights or {}).items():
        values = np.zeros(shape, dtype=np.float32)
        made.graph.initializer.append(numpy_helper.from_array(values, name))
    return made


def read(made: ModelProto, **dimensions: int) -> OperatorGraph:
    return read_onnx(made.SerializeToString(), dimensions=dimensions).graph


def column(graph: OperatorGraph, key: str) -> dict[str, int]:
    return dict(zip(graph.ids, getattr(graph, key).tolist(), strict=True))


def test_sizes_weights_and_counts_follow_from_shapes() -> None:
    graph = read(model(CONVOLUTIONS, WEIGHTS), batch=4)
    assert graph.ids == ("x", "a", "r", "p", "rows", "shape", "f", "mm", "y")
    assert graph.types[:3] == ("input", "Conv", "Relu") and graph.device_types == ()
    weights = column(graph, "weight_bytes")
    assert weights["x"] == 4 * 3 * 32 * 32 * 4
    assert weights["a"] == 16 * 27 * 4 and weights["mm"] == 4096 * 10 * 4 and weights["y"] == 40
    assert weights["shape"] == 8, "the Constant"
    flops = column(graph, "flops")
    assert flops["a"] == 2 * 4 * 16 * 32 * 32 * 27
    assert flops["p"] == 4 * 4 * 16 * 16 * 16
    assert flops["mm"] == 2 * 4 * 10 * 4096
    assert flops["f"] == flops["rows"] == 0
    traffic = column(graph, "traffic_bytes")
    assert traffic["mm"] == 4 * (4 * 4096 + 4096 * 10 + 4 * 10)
    left = column(graph, "activation_bytes")
    assert left["a"] == 4 * 16 * 32 * 32 * 4 and left["f"] == 0, "a view"
    sent = {(t.producer, t.consumers): t.bytes for t in tensor_rows(graph)}
    assert sent["p", ("rows", "f")] == 4 * 4096 * 4
    assert sent["rows", ("shape",)] == 8
    assert graph.signatures[graph.ids.index("mm")] == "FLOAT[4, 10]"


def test_times_are_modelled_from_what_is_counted(tmp_path: Path) -> None:
    file, out = tmp_path / "net.onnx.gz", tmp_path / "net.json"
    file.write_bytes(gzip.compress(model(CONVOLUTIONS, WEIGHTS).SerializeToString()))
    command = ["import", "--format", "onnx", str(file), "--out", str(out)]
    assert main([*command, "--dimension", "batch=64"]) == 0
    graph = with_modelled_seconds(load_graph(out), ["t4", "cpu-core"])
    assert graph.name == "net" and graph.notes["dimensions"] == {"batch": 64}
    seconds = dict(zip(graph.ids, graph.seconds[:, 0].tolist(), strict=True))
    assert seconds["a"] > seconds["y"] > seconds["f"] == seconds["x"] == 0


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("Conv", "convolution"), ("Gemm", "matmul"), ("LSTM", "matmul"), ("Softmax", "reduction"),
        ("ReduceMean", "reduction"), ("GatherND", "gather"), ("MaxPool", "window"),
        ("Attention", "attention"), ("Relu", "elementwise"), ("BatchNormalization", "reduction"),
    ],
)  # fmt: skip
def test_kinds_of_onnx_operators(operator: str, kind: str) -> None:
    assert kind_of(operator) == kind


SHARED = (
    HEAD
    + """
g (float[8, 64] x) => (float[8, 64] y) {
  a = MatMul(x, large)
  b = MatMul(a, large)
  c = Add(a, small)
  d = Add(b, small)
  y = Add(c, d)
}
"""
)


def test_weights_of_several_readers_are_sent_and_small_ones_copied() -> None:
    graph = read(model(SHARED, {"large": (64, 64), "small": (64,)}))
    assert graph.types[graph.ids.index("large")] == "parameter"
    weights = column(graph, "weight_bytes")
    assert weights["large"] == 64 * 64 * 4 and weights["a"] == weights["b"] == 0
    assert weights["c"] == weights["d"] == 256
    (tensor,) = [t for t in tensor_rows(graph) if t.producer == "large"]
    assert tensor.consumers == ("a", "b") and tensor.bytes == 64 * 64 * 4


def test_weights_that_an_exporter_tied_are_one() -> None:
    text = SHARED.replace("b = MatMul(a, large)", "tied = Identity(large)\n  b = MatMul(a, tied)")
    graph = read(model(text, {"large": (64, 64), "small": (64,)}))
    assert "tied" not in graph.ids and "Identity" not in graph.types
    (tensor,) = [t for t in tensor_rows(graph) if t.producer == "large"]
    assert tensor.consumers == ("a", "b")


def test_a_model_without_its_weights_is_the_same_graph(tmp_path: Path) -> None:
    made = model(CONVOLUTIONS, WEIGHTS)
    whole = read(made, batch=4)
    file = tmp_path / "net.onnx"
    onnx.save_model(
        made, file, save_as_external_data=True, location="weights.bin", size_threshold=64
    )
    (tmp_path / "weights.bin").rename(tmp_path / "elsewhere")
    with pytest.raises(GraphError, match=r"initializer 'filter': .*weights.bin"):
        read_onnx(file.read_bytes(), folder=tmp_path, dimensions={"batch": 4})
    (tmp_path / "elsewhere").rename(tmp_path / "weights.bin")
    graph = read_onnx(file.read_bytes(), folder=tmp_path, dimensions={"batch": 4}).graph
    assert graph.structure_hash == whole.structure_hash
    assert graph.weight_bytes.tolist() == whole.weight_bytes.tolist()


def test_weights_that_no_machine_holds() -> None:
    text = HEAD + "g (float[1, 1000000] x) => (float[1, 1000000] y) { y = MatMul(x, w) }"
    made = model(text)
    terabytes = made.graph.initializer.add(name="w", data_type=TensorProto.FLOAT)
    terabytes.dims.extend([1_000_000, 1_000_000])
    terabytes.data_location = TensorProto.EXTERNAL
    terabytes.external_data.add(key="location", value="is.nowhere")
    graph = read(made)
    assert column(graph, "weight_bytes")["y"] == 4 * 10**12
    assert column(graph, "flops")["y"] == 2 * 10**12


CONTROL = (
    HEAD
    + """
g (float[4, 8] x, bool c) => (float[4, 8] y, float[4, 8] z) {
  limit = Constant<value = int64 {6}>()
  r = Relu(x)
  y = If (c) <
    then_branch = t () => (float[4, 8] tt) { tt = Tanh(r) },
    else_branch = e () => (float[4, 8] ee) { ee = Neg(r) }
  >
  z = Loop (limit, , y) <
    body = b (int64 k, bool on, float[4, 8] s) => (bool go, float[4, 8] next) {
      go = Identity(on)
      w = MatMul(s, square)
      next = Add(w, r)
    }
  >
}
"""
)


def test_bodies_count_as_often_as_they_run_and_read_what_is_outside() -> None:
    graph = read(model(CONTROL, {"square": (8, 8)}))
    assert graph.ids == ("x", "c", "r", "y", "z")
    flops = column(graph, "flops")
    assert flops["y"] == 12 * 32, "the larger side"
    assert flops["z"] == 6 * (2 * 32 * 8 + 32)
    assert column(graph, "weight_bytes")["z"] == 8 + 8 * 8 * 4
    (read_by,) = [t.consumers for t in tensor_rows(graph) if t.producer == "r"]
    assert read_by == ("y", "z")


def test_a_loop_of_unknown_length_is_refused() -> None:
    text = CONTROL.replace("limit = Constant<value = int64 {6}>()", "limit = Size(c)")
    with pytest.raises(GraphError, match=r"\(Loop\): how often it runs its body depends on values"):
        read(model(text, {"square": (8, 8)}))


ATTENTION = "Attention<q_num_heads=2, kv_num_heads=2>"
FORMULAS = [
    ("float[2,5,8] x", "float[2,5,5] y", 'y = Einsum<equation="bld,bmd->blm">(x, x)', 800),
    ("float[2,5,8] x", "float[2,5,8] y", f"y = {ATTENTION}(x, x, x)", 4 * 5 * 2 * 5 * 8),
    ("float[5,2,8] x", "float[5,1,2,3] y", "y = LSTM<hidden_size=3>(x, w, r)", 2 * 10 * 132),
    ("float[4,8] x", "float[4,6] y", "y = Gemm<transB=1>(x, v, b)", 24 * 17),
    ("float[1,4,8,8] x", "float[1,4,1,1] y", "y = GlobalAveragePool(x)", 256),
    ("float[1,4,8,8] x", "float[1,2,9,9] y", "y = ConvTranspose(x, k)", 2 * 256 * 8),
    ("float[4,8] x", "float[4,8] y", "y = Softmax(x)", 12 * 32),
]  # fmt: skip


@pytest.mark.parametrize(("given", "result", "node", "flops"), FORMULAS)
def test_formulas(given: str, result: str, node: str, flops: int) -> None:
    shapes = {"w": (1, 12, 8), "r": (1, 12, 3), "v": (6, 8), "b": (6,), "k": (4, 2, 2, 2)}
    head = '<ir_version: 11, opset_import: ["" : 23]>'
    used = {name: shape for name, shape in shapes.items() if f" {name}" in node}
    graph = read(model(f"{head} g ({given}) => ({result}) {{ {node} }}", used))
    assert column(graph, "flops")["y"] == flops


def test_functions_of_the_files_own_are_inlined() -> None:
    text = """
<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
g (float[4, 8] x) => (float[4, 8] y) { y = own.twice(x) }
<domain: "own", opset_import: ["" : 18]>
twice (a) => (c) { b = Relu(a)
  c = Tanh(b) }
"""
    assert read(model(text)).types == ("input", "Relu", "Tanh")


def test_operators_of_other_domains_are_noted() -> None:
    text = """
<ir_version: 9, opset_import: ["" : 18, "com.acme" : 1]>
g (float[4, 8] x) => (float[4, 8] y) { y = com.acme.Mystery(x) }
"""
    graph = read(model(text))
    assert graph.types[1] == "com.acme.Mystery" and graph.flops[1] == 32
    assert graph.notes["counted_per_element"] == ["com.acme.Mystery"]


@pytest.mark.filterwarnings("ignore")
def test_what_torch_exports_is_read() -> None:
    """The model is exported by torch's TorchScript exporter, which needs no package but onnx."""
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    ).eval()
    file = io.BytesIO()
    torch.onnx.export(
        network, (torch.randn(2, 3, 8, 8),), cast(Any, file), dynamo=False, input_names=["x"],
        dynamic_axes={"x": {0: "batch"}},
    )  # fmt: skip
    graph = read_onnx(file.getvalue(), dimensions={"batch": 32}).graph
    assert graph.types[0] == "input" and graph.types[-1] == "Gemm"
    assert graph.flops[-1] == 32 * 5 * (2 * 4 * 36 + 1)
    folded = sum(p.nelement() for i in (0, 4) for p in network[i].parameters())
    assert graph.weight_bytes[1:].sum() >= 4 * folded


MISTAKES = [
    ("", {}, "no ONNX model"),
    (CONVOLUTIONS, {}, "input 'x': its dimension 'batch' has no size; give it with --dimension"),
    (CONVOLUTIONS, {"batch": 4, "bath": 4}, "it has no dimension 'bath'"),
    (
        HEAD + "g (float[2,3] x) => (float[2,3] y) { y = Add(x, lost) }", {},
        "lost",
    ),
    (
        HEAD + "g (float[2,3] x) => (float[2,4] y) { y = Relu(x) }", {},
        "its shapes cannot be inferred",
    ),
    (
        HEAD + "g (float[2,3] x) => (float[a,2] y) { n = NonZero(x)\n f = Cast<to=1>(n)\n"
        " y = Transpose(f) }", {},
        "depends on values; give the size to plan for with --dimension",
    ),
    (
        HEAD + "g (float[2,3] x) => (float[2,3] y) { s = SequenceConstruct(x, x)\n"
        " i = Constant<value = int64 {0}>()\n y = SequenceAt(s, i) }", {},
        "is a sequence, whose size is not known before the model runs",
    ),
    (
        HEAD + "g (string[2] x) => (string[2] y) { y = Identity(x) }", {},
        "holds texts",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "dimensions", "message"), MISTAKES)
def test_a_mistake_names_file_and_place(
    text: str,
    dimensions: dict[str, int],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, out = tmp_path / "in.onnx", tmp_path / "out.json"
    weights = WEIGHTS if text == CONVOLUTIONS else {}
    file.write_bytes(model(text, weights).SerializeToString() if text else b"")
    command = ["import", "--format", "onnx", str(file), "--out", str(out)]
    for name, size in dimensions.items():
        command += ["--dimension", f"{name}={size}"]
    assert main(command) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ") and said.count("\n") == 1
    assert message in said
    assert not out.exists()


def test_what_depends_on_values_can_be_given() -> None:
    text = HEAD + "g (float[2,3] x) => (int64[2, n] y) { y = NonZero(x) }"
    assert column(read(model(text), n=5), "activation_bytes")["y"] == 2 * 5 * 8


def test_damaged_bytes_are_refused_and_end_nothing() -> None:
    whole = model(CONVOLUTIONS, WEIGHTS).SerializeToString()
    for data in (whole[:40], whole[:-100], b"{}", b"\x00" * 64, whole[200:]):
        with pytest.raises(GraphError, match="no ONNX model"):
            read_onnx(data, dimensions={"batch": 4})
    generator = np.random.default_rng(5)
    for _ in range(200):
        data = bytearray(whole)
        for place in generator.integers(0, 700, 3):
            data[place] = int(generator.integers(0, 256))
        try:
            read_onnx(bytes(data), dimensions={"batch": 4})
        except GraphError as error:
            assert "\n" not in str(error)


def test_a_value_given_twice_and_a_cycle_are_refused() -> None:
    made = model(CONVOLUTIONS, WEIGHTS)
    made.graph.node[1].output[0] = "a"
    with pytest.raises(GraphError, match="a"):
        read(made, batch=4)
    made = model(HEAD + "g (float[2] x) => (float[2] y) { y = Add(x, x) }")
    made.graph.node[0].input[1] = "y"
    with pytest.raises(GraphError, match="y"):
        read(made)


def test_dimensions_are_for_onnx_and_have_a_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import", "--format", "thesis", str(tmp_path / "x"), "--out", str(tmp_path / "y")]
    with pytest.raises(SystemExit):
        main([*command, "--dimension", "batch=4"])
    assert "--dimension is an option of --format onnx" in capsys.readouterr().err
    command[2] = "onnx"
    with pytest.raises(SystemExit):
        main([*command, "--dimension", "batch"])
    assert "is not of the form NAME=SIZE" in capsys.readouterr().err


def test_without_the_package_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = model(CONVOLUTIONS, WEIGHTS).SerializeToString()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(GraphError, match=r"needs the package onnx .*placewire\[onnx\]"):
        read_onnx(data)


def test_bytes_of_packed_types_round_up() -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> g (int4[3] x) => (float[3] y)'
    made = model(text + " { y = Cast<to=1>(x) }")
    assert column(read(made), "weight_bytes")["x"] == 2
    assert helper.np_dtype_to_tensor_dtype(np.dtype("float32")) == TensorProto.FLOAT
