"""The networks and the update of ColocRL and of the hierarchical planner, worked by hand; what all
learned engines have in common is tested in test_learned_engines."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from placewire.optimizer.problem import Problem
from placewire.optimizer.published.engines.shared.deadline import Deadline
from placewire.optimizer.published.learned.nodes import units
from placewire.optimizer.published.learned.recurrent import neighbours
from placewire.optimizer.published.learned.recurrent_network import (
    RecurrentPolicy,
    attended,
    described_groups,
)
from placewire.optimizer.published.learned.recurrent_training import Drawn, RecurrentTraining
from placewire.optimizer.published.learned.settings import RecurrentSettings
from placewire.optimizer.published.learned.trials import Trials
from tests.optimizer.cases import cluster, graph
from tests.optimizer.published.published_cases import alike

NO_END = Deadline("hrl", math.inf)


def test_attention_is_a_mean_by_likeness():
    """States of four numbers, whose products are halved: of (2 ln 3) 1 and 0 the softmax is 3/4 and
    1/4, so that the mean is 3/4 of the first and 1/4 of the second."""
    memory = torch.tensor([[[1.0, 0.0, 8.0, 0.0], [0.0, 1.0, 0.0, 8.0]]])
    state = torch.tensor([[2 * math.log(3.0), 0.0, 0.0, 0.0]])
    assert attended(memory, state)[0].tolist() == pytest.approx([0.75, 0.25, 6.0, 2.0])


def test_groups_are_described_by_their_nodes_and_links():
    """a -> b -> c, of one feature each: 1, 2 and 4. {a b} and {c}: sums 3 and 4, linked. {a} and
    {b c}: sums 1 and 6, linked. All in the second: sums 0 and 7, and nothing is linked."""
    group = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 1, 1]])
    found = described_groups(
        torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 1]), torch.tensor([1, 2]), group, 2
    )
    assert found.shape == (2, 3, 1 + 2)
    sums = [[3.0, 1.0, 0.0], [4.0, 6.0, 7.0]]
    assert found[:, :, 0].numpy() == pytest.approx(np.log1p(sums))
    assert found[0, :, 1:].tolist() == [[0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    assert found[1, :, 1:].tolist() == [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]


def test_a_node_names_its_first_six_neighbours_on_each_side():
    """a goes to b .. h, seven of them; the last of eight nodes is 1."""
    made = graph(dict.fromkeys("abcdefgh", 1.0), [("a", list("bcdefgh"), 8)])
    found = neighbours(units(Problem(made, cluster(2))))
    assert found[0].tolist() == pytest.approx([-1.0] * 6 + [k / 7 for k in range(1, 7)])
    assert found[7].tolist() == pytest.approx([0.0] + [-1.0] * 11)


def two_apart(groups, **changes):
    """Two operators without an edge on two devices, of which a policy chooses the first with
    probability 3/4."""
    settings = RecurrentSettings(hidden=2, groups=groups, clip_norm=1e9, **changes)
    problem = alike({"a": 1.0, "b": 1.0}, {}, 2)
    trials = Trials(problem, units(problem), None, NO_END)
    torch.manual_seed(0)
    policy = RecurrentPolicy(1, 2, 2, 1, settings)
    with torch.no_grad():
        policy.placer.out.weight.zero_()
        policy.placer.out.bias.copy_(torch.tensor([math.log(3.0), 0.0]))
    rows = torch.ones(2, 1)
    return RecurrentTraining(policy, rows, rows, 2, trials, seed=0)


def test_an_update_favours_what_is_better_than_the_mean():
    """Rewards -1 with both on the first device, and -3 with b on the second: 1 more and 1 less than
    their mean. The loss is -1/2 (2 ln 3/4 - (ln 3/4 + ln 1/4)) = -1/2 ln 3, and its derivative by
    the first device's logit is -1/2 ((1/4 + 1/4) - (1/4 - 3/4)) = -1/2. The next mean, -4, moves
    the baseline by a tenth of the way, to -2.2."""
    taught = two_apart(0)
    apart = np.arange(2)
    drawn = [Drawn(apart, np.array([0, 0]), -1.0), Drawn(apart, np.array([0, 1]), -3.0)]
    assert taught.update(drawn) == pytest.approx(-math.log(3.0) / 2)
    assert taught.policy.placer.out.bias.grad.tolist() == pytest.approx([-0.5, 0.5])
    assert taught.baseline == pytest.approx(-2.0)
    taught.update([Drawn(apart, np.array([0, 0]), -4.0)])
    assert taught.baseline == pytest.approx(-2.2)


def test_the_planner_learns_groups_and_devices_from_one_reward():
    """The grouper chooses either group with probability 1/2. Both nodes in the second group, on the
    second device: log 1/2 + log 1/2 + log 1/4; the device of the empty first group counts for
    nothing. Apart on both devices: log 1/2 + log 1/2 + log 3/4 + log 1/4."""
    taught = two_apart(2)
    assert taught.policy.grouper is not None
    with torch.no_grad():
        for weight in taught.policy.grouper.parameters():
            weight.zero_()
    together = Drawn(np.array([1, 1]), np.array([0, 1]), -1.0)
    apart = Drawn(np.array([0, 1]), np.array([0, 1]), -3.0)
    first, second = math.log(1 / 16), math.log(3 / 64)
    assert taught.update([together, apart]) == pytest.approx(-(first - second) / 2)
    # Of either node the second group is the better one here: -1/2 (1/2 + 0) each, or 0 for b.
    assert taught.policy.grouper[-1].bias.grad.tolist() == pytest.approx([0.5, -0.5])


def test_a_reward_is_minus_the_root_of_the_step():
    """In times of both operators one after the other: 1 on one device, 1/2 apart."""
    made = two_apart(0, samples=30).episode(explores=True)
    found = {(len(set(one.choice.tolist())), round(one.reward, 6)) for one in made}
    assert found == {(1, -1.0), (2, -round(math.sqrt(0.5), 6))}


def test_a_node_that_its_groups_device_cannot_run_goes_to_one_that_can():
    taught = two_apart(2)
    taught.nodes.able[:] = [[True, False], [False, True]]
    able = taught._able(torch.tensor([[0, 1], [0, 0]]))
    assert able[:, 0].tolist() == [[True, False], [False, True]]
    assert able[:, 1].tolist() == [[True, True], [True, True]]  # the two have none in common
    taught._reward(np.array([0, 0]), np.array([0, 0]), explores=False)
    assert taught.trials.best is not None and taught.trials.best.device.tolist() == [0, 1]
