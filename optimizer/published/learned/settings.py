"""Settings of the learned engines: HSDAG's table 4, its counterparts for the others, and file
names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# The groups of features that hsdag's policy can leave out: its paper's ablations.
#   structure  in- and out-degrees, fractal dimension
#   shape      output shapes
#   position   the place in the topological order
Feature = Literal["structure", "shape", "position"]
# The endings that a training curve's file name may have.
CURVES = (".csv", ".png")
# Placeto holds three tables of nodes by nodes: what lies before, behind and beside each node.
MOST_PLACETO_NODES = 4_000
# ColocRL's decoder looks at all nodes for each node.
MOST_COLOCRL_NODES = 2_000


@dataclass(frozen=True)
class Learning:
    """policy: the file of a policy to begin with; save_policy, curve: the files for the trained
    policy and its training curve; without: the features that hsdag's policy leaves out."""

    policy: Path | None = None
    save_policy: Path | None = None
    curve: Path | None = None
    without: tuple[Feature, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Learning:
        """Reads SolveSettings.options. Raises ValueError where a trained policy is to leave
        features out."""
        found = cls(
            options.get("policy"),
            options.get("save_policy"),
            options.get("curve"),
            tuple(sorted(set(options.get("without", ())))),
        )
        if found.without and found.policy is not None:
            raise ValueError(
                "--without is for a new policy, and that of --policy has its features already; "
                "leave one of the two out"
            )
        return found


@dataclass(frozen=True)
class HsdagSettings:
    """Table 4 of the paper, under its names; discount and patience are not in that table.

    hidden_channel: length of an embedding. layer_trans, layer_gnn, layer_parsingnet: layers of the
    MLP before the convolutions, of the convolutions, and of the MLP that scores edges.
    dropout_network, dropout_parsing: the share of edges left out before a node chooses its
    strongest, and of those chosen. max_episodes, update_timestep, k_epochs: episodes, placements in
    each, and updates after each. discount: gamma of (14). patience: episodes without gain that end
    the training.
    """

    hidden_channel: int = 128
    layer_trans: int = 2
    layer_gnn: int = 2
    layer_parsingnet: int = 2
    dropout_network: float = 0.2
    dropout_parsing: float = 0.0
    learning_rate: float = 1e-4
    max_episodes: int = 100
    update_timestep: int = 20
    k_epochs: int = 4
    discount: float = 0.99
    patience: int = 30


@dataclass(frozen=True)
class PlacetoSettings:
    """Our own choices; the paper's are not known here. hidden: length of an embedding; rounds: of
    messages in each direction; entropy: the first weight of the policy's entropy, falling to 0."""

    hidden: int = 32
    rounds: int = 4
    learning_rate: float = 2e-3
    max_episodes: int = 100
    entropy: float = 0.02
    patience: int = 30


@dataclass(frozen=True)
class RecurrentSettings:
    """Of engines `colocrl` and `hrl`, whose own are not known here. hidden: length of a state;
    groups: at most so many, 0 where each node is a group of its own; samples: placements of an
    episode, after which there is one update; baseline_kept: the part of the mean reward that an
    episode leaves as it was; clip_norm: the most that the norm of the gradients may be. Episodes
    and patience are those of HSDAG, in placements."""

    hidden: int = 64
    groups: int = 0
    samples: int = 10
    learning_rate: float = 2e-3
    baseline_kept: float = 0.9
    clip_norm: float = 1.0
    max_episodes: int = 200
    patience: int = 60
