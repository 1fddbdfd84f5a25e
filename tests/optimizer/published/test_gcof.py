"""GCOF: Moirai's figures 5, 6 and 7, what the rules fuse and what not, and that every fused group
follows a rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.graph.operator_graph import TUPLE_ITEM
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.fusion_rules import EIGEN, INDUCTOR, plain_type
from placewire.optimizer.published.reductions.gcof import coarsen_by_fusion, fused_groups
from placewire.optimizer.reductions.chain import reduce_by_name
from placewire.optimizer.reductions.refusals import ReductionRefusedError
from tests.drawn_examples import examples
from tests.optimizer.cases import cluster, described, graph, graphs


def typed(edges, **types):
    """typed("a-b b-c", a="conv", …): operators of 1 s, tensors of 8 bytes."""
    made = graph(
        dict.fromkeys(types, 1.0), [(e.split("-")[0], [e.split("-")[1]], 8) for e in edges.split()]
    )
    return replace(made, types=tuple(types.values()))


def fused(made, rules=EIGEN):
    return {" ".join(made.ids[i] for i in group) for group in fused_groups(made, rules)}


# Upper branch: three times add, relu. Lower branch: twice conv, bn, from the first add to the last.
FIGURE_7 = typed(
    "add0-relu0 relu0-add1 add1-relu1 relu1-add2 add2-relu2 add0-conv1 conv1-bn1 bn1-conv2 "
    "conv2-bn2 bn2-add2",
    add0="add", relu0="relu", add1="add", relu1="relu", add2="add", relu2="relu",
    conv1="conv", bn1="bn", conv2="conv", bn2="bn",
)  # fmt: skip


def test_figure_7_as_the_text_walks_through_it():
    # The first pair is a multi-output connection; the other two are bound, the last of them joins
    # conv2 and bn2 by rule 3 through a multi-input connection, the middle one is released.
    assert fused(FIGURE_7) == {"conv1 bn1", "conv2 bn2 add2 relu2"}
    small, _ = coarsen_by_fusion(Problem(FIGURE_7, cluster()), EIGEN)
    # A fused operator has the name of the first of its operators in the file.
    assert set(small.graph.ids) == {"add0", "relu0", "add1", "relu1", "conv1", "add2"}
    assert small.graph.seconds[small.graph.index_of["add2"]] == 4.0


def test_figure_7_does_not_depend_on_which_branch_comes_first():
    lower_first = typed(
        "add0-conv1 add0-relu0 conv1-bn1 bn1-conv2 conv2-bn2 bn2-add2 relu0-add1 add1-relu1 "
        "relu1-add2 add2-relu2",
        add0="add", conv1="conv", bn1="bn", conv2="conv", bn2="bn", relu0="relu", add1="add",
        relu1="relu", add2="add", relu2="relu",
    )  # fmt: skip
    assert fused(lower_first) == {"conv1 bn1", "conv2 bn2 add2 relu2"}


def test_figure_6_direct_and_multi_input_connections_fuse_and_multi_outputs_do_not():
    assert fused(typed("a-b", a="conv", b="bn")) == {"a b"}
    assert fused(typed("a-b c-b", a="conv", b="bn", c="input")) == {"a b"}
    assert fused(typed("a-b a-c", a="conv", b="bn", c="output")) == set()


def test_figure_5_an_elementwise_expression_is_one_kernel_of_inductor():
    # (op2 + input * op1) * op3
    made = typed(
        "input-mul1 op1-mul1 mul1-add2 op2-add2 add2-mul3 op3-mul3",
        input="input", op1="input", op2="input", op3="input",
        mul1="aten.mul.Tensor", add2="aten.add.Tensor", mul3="aten.mul.Tensor",
    )  # fmt: skip
    assert fused(made, INDUCTOR) == {"mul1 add2 mul3"}
    assert fused(made, EIGEN) == set()


def test_a_run_ends_in_its_reduction_and_products_stay_calls():
    made = typed(
        "mm-gelu gelu-view view-sum sum-neg",
        mm="aten.mm.default", gelu="aten.gelu.default", view="aten.view.default",
        sum="aten.sum.dim_IntList", neg="aten.neg.default",
    )  # fmt: skip
    assert fused(made, INDUCTOR) == {"gelu view sum"}
    many = {f"o{k}": "Mul" for k in range(100)}
    long = typed(" ".join(f"o{k}-o{k + 1}" for k in range(99)), **many)
    assert sorted(len(one.split()) for one in fused(long, INDUCTOR)) == [36, 64]


def test_what_is_bound_to_a_fused_part_is_released_from_it():
    # conv, bn, add are part of rule 3; where no relu follows, only conv and bn are fused.
    made = typed("a-b b-c c-d", a="conv", b="bn", c="add", d="softmax")
    assert fused(made) == {"a b"}
    assert fused(typed("a-b b-c c-d", a="conv", b="bn", c="add", d="relu")) == {"a b c d"}


def test_products_take_their_bias_and_relu():
    assert fused(typed("a-b b-c", a="MatMul", b="BiasAdd", c="Relu")) == {"a b c"}
    assert fused(typed("a-b", a="aten.addmm.default", b="aten.relu.default")) == {"a b"}


def test_items_of_a_tuple_are_one_with_what_made_it():
    # In inference only the first item is read; in training the others are read later.
    kinds = {
        "conv": "aten.convolution.default", "bn": "aten.native_batch_norm.default",
        "y": TUPLE_ITEM, "relu": "aten.relu.default",
    }  # fmt: skip
    assert fused(typed("conv-bn bn-y y-relu", **kinds)) == {"conv bn y relu"}
    trained = typed("conv-bn bn-y bn-mean y-relu mean-back", **kinds, mean=TUPLE_ITEM, back="back")
    assert fused(trained) == {"conv bn y mean"}
    assert (
        fused(typed("bn-y bn-mean y-relu mean-back", **kinds, mean=TUPLE_ITEM, back="back"))
        == set()
    )


@pytest.mark.parametrize(
    ("name", "plain"),
    [("aten.relu_.default", "relu"), ("aten._native_batch_norm_legit.no_stats",
      "nativebatchnormlegit"), ("FusedBatchNormV3", "fusedbatchnormv3"), ("Conv", "conv"),
     ("prims.convert_element_type.default", "convertelementtype")],
)  # fmt: skip
def test_types_by_their_plain_names(name, plain):
    assert plain_type(name) == plain


def test_two_keys_are_never_fused():
    made = typed("a-b p-c q-d", a="conv", b="bn", p="x", c="x", q="x", d="x")
    tied = replace(made, colocation=np.array([0, 1, 0, -1, 1, -1]))
    small, _ = coarsen_by_fusion(Problem(tied, cluster()), EIGEN)
    assert small.graph.operator_count == 6


@pytest.mark.parametrize("rules", [EIGEN, INDUCTOR])
def test_a_graph_without_known_types_is_refused(rules):
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 8)])
    with pytest.raises(ReductionRefusedError, match=rf"{rules.backend}'s rules know none .*\(op\)"):
        reduce_by_name(Problem(made, cluster()), f"gcof-{rules.backend.lower()}")


@settings(max_examples=examples(80), deadline=None)
@given(graphs(largest=14), st.sampled_from([EIGEN, INDUCTOR]))
def test_every_fused_group_is_an_instance_of_a_rule(made, rules):
    made = described(made)
    source, target, _ = made.edges
    for group in fused_groups(made, rules):
        kinds = tuple(
            rules.kind(made.types[i]) or "?" for i in group if made.types[i] != TUPLE_ITEM
        )
        assert rules.is_rule(kinds)
        # Operators outside the group read only the last operator of the rule, and its items.
        leaves = set(source[np.isin(source, group) & ~np.isin(target, group)].tolist())
        last = [k for k, i in enumerate(group) if made.types[i] != TUPLE_ITEM][-1]
        assert leaves <= set(group[last:])
