"""How one operator runs, on whatever rank or device: the one place that says so."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from placewire.optimizer.capture.layout import Layout
from placewire.optimizer.capture.step import CapturedStep
from placewire.optimizer.capture.stepped import Seeder, Stepped
from placewire.optimizer.capture.updates import AdamW, Sgd, parameter_update


@dataclass(frozen=True)
class Execution:
    """What there is to a node beside its target and arguments.

    seeder: to be called right before it. update: what it calls, where it is a call_module.
    layout: what its result is brought to (`as_captured`), where it allocates one.
    """

    seeder: Seeder | None
    update: AdamW | Sgd | None
    layout: Layout | None

    @property
    def stepped(self) -> tuple[Stepped, ...]:
        """What must be told the number of each step."""
        return tuple(part for part in (self.seeder, self.update) if part is not None)


def execution_of(captured: CapturedStep, node: fx.Node) -> Execution:
    """With new optimizer state, on the real parameter. For an operator that computes."""
    analysis, update = captured.analysis, None
    if node.op == "call_module":
        parameter = captured.values[captured.code.writers[node.name]]
        update = parameter_update(captured.optimizer, parameter)
    drawn = analysis.random.get(node.name)
    return Execution(
        seeder=None if drawn is None else Seeder(captured.seed, drawn, captured.device.type),
        update=update,
        layout=analysis.layouts[node.name] if node.name in analysis.fresh else None,
    )
