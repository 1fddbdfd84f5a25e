"""HSDAG's equations (6), (7), (11), (13) and (14), against values that are worked out by hand, and
the rounds of an episode."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from placewire.optimizer.problem import Problem
from placewire.optimizer.published.engines.shared.deadline import Deadline
from placewire.optimizer.published.learned.hsdag_network import HsdagPolicy, normalised_adjacency
from placewire.optimizer.published.learned.hsdag_training import HsdagTraining, Proposal
from placewire.optimizer.published.learned.nodes import units
from placewire.optimizer.published.learned.parsing import parsed_graph
from placewire.optimizer.published.learned.settings import HsdagSettings
from placewire.optimizer.published.learned.trials import Trials
from tests.optimizer.cases import cluster, graph, layered
from tests.optimizer.published.published_cases import alike

NO_END = Deadline("hsdag", math.inf)
# A network so small that its weights can be set by hand.
SMALL = HsdagSettings(hidden_channel=2, layer_gnn=1, layer_parsingnet=1, k_epochs=1)


def policy(settings=SMALL, devices=2):
    torch.manual_seed(0)
    return HsdagPolicy(3, devices, settings)


def training(problem, settings=SMALL):
    nodes = units(problem)
    trials = Trials(problem, nodes, None, NO_END)
    made = policy(settings, len(problem.cluster.devices))
    return HsdagTraining(made, torch.ones(nodes.count, 3), trials, seed=0)


# --- embeddings and scores ------------------------------------------------------------------------


def test_equation_6_on_a_path_of_three():
    """a -> b -> c. With loops and both directions the degrees are 2, 3 and 2, so that the entries
    are 1/2 for a and c, 1/3 for b, and 1/sqrt(6) between a and b and between b and c. W doubles the
    second column. Of X = (1 -1; 2 1; 4 0) the product's rows are, before the relu:
    a: 1/2 (1 -2) + 1/sqrt(6) (2 2)                      = (1.316497, -0.183503)
    b: 1/sqrt(6) (1 -2) + 1/3 (2 2) + 1/sqrt(6) (4 0)    = (2.707908, -0.149830)
    c: 1/sqrt(6) (2 2) + 1/2 (4 0)                       = (2.816497,  0.816497)"""
    made = policy()
    with torch.no_grad():
        made.convolutions[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        adjacency = normalised_adjacency(torch.tensor([0, 1]), torch.tensor([1, 2]), 3)
        found = made.embed(torch.tensor([[1.0, -1.0], [2.0, 1.0], [4.0, 0.0]]), adjacency)
    wanted = [[1.316497, 0.0], [2.707908, 0.0], [2.816497, 0.816497]]
    assert found.numpy() == pytest.approx(np.array(wanted), abs=1e-5)


def test_equation_7_on_two_edges():
    """phi(x) = x1 + x2 - 1. (1 2) times (3 -1) is (3 -2): phi is 0, the score 1/2. (3 -1) times
    (1, 2 - ln 3) is (3, ln 3 - 2): phi is ln 3, the score 3/4. Both directions have one score."""
    made = policy()
    with torch.no_grad():
        made.edge_score[0].weight.copy_(torch.tensor([[1.0, 1.0]]))
        made.edge_score[0].bias.fill_(-1.0)
        embedded = torch.tensor([[1.0, 2.0], [3.0, -1.0], [1.0, 2.0 - math.log(3.0)]])
        source, target = torch.tensor([0, 1]), torch.tensor([1, 2])
        assert made.score(embedded, source, target).tolist() == pytest.approx([0.5, 0.75])
        assert made.score(embedded, target, source).tolist() == pytest.approx([0.5, 0.75])


# --- parsed graphs --------------------------------------------------------------------------------


def test_equation_11_on_a_square():
    """A has a -> b, a -> c, b -> d and c -> d. With the groups {a b}, {c}, {d}, X^T A X has 1 on
    the diagonal for a -> b, and {a b} -> {c}, {a b} -> {d}, {c} -> {d}. With {a b}, {c d} it has 2
    from the first to the second, a -> c and b -> d: one edge."""
    made = graph(
        dict.fromkeys("abcd", 1.0),
        [("a", ["b", "c"], 8), ("b", ["d"], 8), ("c", ["d"], 8)],
        weight_bytes={"a": 1, "b": 2, "c": 4, "d": 8},
    )
    nodes = units(Problem(made, cluster(2)))
    nodes = replace(nodes, able=np.array([[1, 1], [1, 0], [1, 1], [0, 1]], dtype=np.bool_))

    def edges(found):
        return list(zip(found.source.tolist(), found.target.tolist(), strict=True))

    three = parsed_graph(nodes, np.array([0, 0, 1, 2]))
    assert edges(three) == [(0, 1), (0, 2), (1, 2)]
    assert three.weight_bytes.tolist() == [3, 4, 8]
    assert three.able.tolist() == [[True, False], [True, True], [False, True]]
    assert three.of_operator.tolist() == [0, 0, 1, 2]
    two = parsed_graph(nodes, np.array([0, 0, 1, 1]))
    assert edges(two) == [(0, 1)]
    # A parsed graph is parsed again: its groups are of the operators, too.
    one = parsed_graph(three, np.array([0, 1, 1]))
    assert edges(one) == [(0, 1)] and one.of_operator.tolist() == [0, 0, 1, 1]


def test_a_round_takes_the_graph_that_the_round_before_parsed():
    """Until it has no edge; then the graph as given comes again, with other embeddings."""
    taught = training(Problem(layered(6, 4), cluster(3)), HsdagSettings(hidden_channel=8))
    made = taught.episode(explores=False)
    assert len(made) == 20
    assert made[0].nodes is taught.nodes and made[0].state is None
    again = 0
    for before, after in itertools.pairwise(made):
        ended = not len(before.parsed.source) or before.parsed.count == before.nodes.count
        assert after.nodes is (taught.nodes if ended else before.parsed)
        assert after.state is not None and len(after.state) == after.nodes.count
        again += ended
    assert made[1].nodes.count < made[0].nodes.count and 1 <= again < 19
    # Nodes that have other features or neighbours are told apart when the graph comes again.
    first = next(p for p in made[1:] if p.nodes is taught.nodes)
    assert first.state is not None and len(torch.unique(first.state, dim=0)) > 1


# --- the update -----------------------------------------------------------------------------------


def two_apart(discount):
    """Two operators without an edge on two devices, each of which is chosen for either with
    probability 3/4 and 1/4, and a function that makes a proposal of their devices."""
    taught = training(alike({"a": 1.0, "b": 1.0}, {}, 2), replace(SMALL, discount=discount))
    placer = taught.policy.placer[0]
    with torch.no_grad():
        placer.weight.zero_()
        placer.bias.copy_(torch.tensor([math.log(3.0), 0.0]))
    nodes, apart, none = taught.nodes, np.arange(2), np.full(2, -1)

    def proposal(choice, reward):
        return Proposal(nodes, nodes, None, none, apart, np.array(choice), reward)

    return taught, placer, proposal


def test_equation_13_of_one_placement():
    """r = 3, a on the first device, b on the second: log p = ln 3/4 + ln 1/4. Its derivative by the
    first device's logit is (1 - 3/4) + (0 - 3/4) = -1/2; the loss has the other sign, times 3."""
    taught, placer, proposal = two_apart(discount=1.0)
    loss = taught.update([proposal([0, 1], 3.0)])
    assert loss == pytest.approx(-3 * math.log(3 / 16))
    assert placer.bias.grad.tolist() == pytest.approx([1.5, -1.5])


def test_equation_14_of_two_placements():
    """gamma = 1/2. The first, of reward 2, has both on the first device: 1/2 2 (2 ln 3/4), and the
    derivative 1 (1/4 + 1/4) = 1/2. The second, of reward 8, has b on the second device:
    1/4 8 (ln 3/4 + ln 1/4), and the derivative 2 (1/4 - 3/4) = -1. The loss's is 1 - 1/2."""
    taught, placer, proposal = two_apart(discount=0.5)
    loss = taught.update([proposal([0, 0], 2.0), proposal([0, 1], 8.0)])
    assert loss == pytest.approx(-(4 * math.log(3 / 4) + 2 * math.log(1 / 4)))
    assert placer.bias.grad.tolist() == pytest.approx([0.5, -0.5])
    assert not torch.equal(placer.bias.detach(), torch.tensor([math.log(3.0), 0.0]))


def test_the_reward_is_one_over_the_step():
    """In times of all operators one after the other, 2 s: 1 on one device, 2 on two."""
    taught, _, _ = two_apart(discount=1.0)
    made = taught.episode(explores=True)
    assert {(len(set(p.choice.tolist())), p.reward) for p in made} == {(1, 1.0), (2, 2.0)}


def test_placements_of_several_graphs_are_learned_from_at_once():
    """The loss of an episode is the sum of the losses of its placements, each alone."""
    problem = Problem(layered(4, 3), cluster(2))
    settings = HsdagSettings(hidden_channel=8, k_epochs=0, discount=1.0)
    taught = training(problem, settings)
    made = taught.episode(explores=True)[:6]
    assert len({p.nodes.count for p in made}) > 1
    taught.settings = replace(settings, k_epochs=1, learning_rate=0.0)
    for group in taught.optimizer.param_groups:
        group["lr"] = 0.0
    assert taught.update(made) == pytest.approx(sum(taught.update([p]) for p in made), rel=1e-4)
