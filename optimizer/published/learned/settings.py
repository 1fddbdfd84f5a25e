"""What the learned engines are trained with: HSDAG's table 4, and Placeto's counterpart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# What hsdag's policy may be asked to go without: its paper's ablations.
#   structure  in- and out-degrees, fractal dimension
#   shape      output shapes
#   position   the place in the topological order
Feature = Literal["structure", "shape", "position"]
# What a training curve's file may end in.
CURVES = (".csv", ".png")
# Placeto goes from node to node, each with all others in view.
MOST_PLACETO_NODES = 4_000


@dataclass(frozen=True)
class Learning:
    """What the learned engines read and write beside the placement.

    policy: a trained one to begin with; save_policy: where the policy goes in the end; curve: where
    the training curve goes, .csv or .png; without: features that hsdag's policy leaves out.
    """

    policy: Path | None = None
    save_policy: Path | None = None
    curve: Path | None = None
    without: tuple[Feature, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Learning:
        """As SolveSettings.options has it. Raises ValueError for a trained policy that is to leave
        features out."""
        found = cls(
            options.get("policy"),
            options.get("save_policy"),
            options.get("curve"),
            tuple(sorted(set(options.get("without", ())))),
        )
        if found.without and found.policy is not None:
            raise ValueError(
                "--without goes with a new policy; that of --policy has its features already"
            )
        return found


@dataclass(frozen=True)
class HsdagSettings:
    """Table 4 of the paper, by its names; discount and patience are not in it.

    hidden_channel: length of an embedding. layer_trans, layer_gnn, layer_parsingnet: layers of the
    MLP before the convolutions, of these, and of the MLP that scores edges. dropout_network,
    dropout_parsing: the part of edges that is left out before a node chooses its strongest, and of
    those chosen. max_episodes, update_timestep, k_epochs: episodes, placements in each, and updates
    after each. discount: gamma of (14). patience: episodes without gain that end the training.
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
    """Ours; the paper's are not known here. hidden: length of an embedding; rounds of messages in
    each direction; entropy: the weight of the policy's entropy at the start, falling to none."""

    hidden: int = 32
    rounds: int = 4
    learning_rate: float = 2e-3
    max_episodes: int = 100
    entropy: float = 0.02
    patience: int = 30
