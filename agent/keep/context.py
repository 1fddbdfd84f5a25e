"""What every operation of the keeper works with: the server's network, the memory, the retries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal, refuse
from placewire.agent.keep.memory import Memory
from placewire.agent.keep.outcome import KEEPS_TRYING
from placewire.agent.keep.retry import Retry
from placewire.agent.reconcile.admission import admitted, without_unwritten
from placewire.agent.reconcile.effects import EffectError, Network
from placewire.agent.reconcile.ledger import extended
from placewire.agent.reconcile.unmarkable import unmarked
from placewire.agent.reconcile.validate import ServerFacts, WayToController


class Taken(NamedTuple):
    """state: what of a state can be made now (None: nothing is to be left of ours). ledger: as it
    is on disk, with all NICs of `state`. refused: why NICs of the rest stay with their owner."""

    state: DesiredState | None
    ledger: Ledger
    refused: tuple[Refusal, ...]


@dataclass
class Context:
    """Operations that change the network hold the keeper's change lock.

    way: called for each check that needs it, as it may change; an undo to the server's own network
    asks for none.
    elapsed: seconds of a clock that nobody sets.
    read_back_seconds: how long to wait until a read-back shows what was applied.
    read_seconds: how long the last read-back took.
    in_force_is_applied: False while parts of the state in force may be missing that nobody keeps
    from it: from the agent's start until that state was applied and read back, and after a change
    that failed and left it in force. What is missing later is drift.
    awaited: the NICs that were away when that was done. What is theirs is put back once they come,
    also where the plan says that drift is only reported: it is no drift, nobody changed it.
    """

    network: Network
    memory: Memory
    facts: ServerFacts
    way: Callable[[], WayToController]
    elapsed: Callable[[], float]
    read_back_seconds: float
    read_seconds: float = 0.0
    in_force_is_applied: bool = True
    awaited: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.retry = Retry(self.elapsed)

    def observe(self, desired: DesiredState | None, ledger: Ledger) -> ObservedState:
        """Raises UnreadableError."""
        return self.network.observe(unmarked(desired, ledger))

    def take(self, desired: DesiredState | None, observed: ObservedState) -> Taken:
        """Writes down what NICs hold that `desired` takes over and the ledger does not have: a NIC
        that its owner was given back, or that was away. Where the disk does not take it, these are
        left out, because nothing is taken over whose former state could be lost; the others wait
        for no disk."""
        memory = self.memory
        if desired is None:
            return Taken(None, memory.kept.ledger, ())
        # Only whoever holds the change lock changes the ledger.
        state, refused, ledger = admitted(
            desired, observed, memory.kept.ledger, self.facts, self.way
        )
        needed = extended(state, observed, ledger)
        with memory.lock:
            kept = memory.kept
            if needed == kept.ledger:
                return Taken(state, needed, refused)
            try:
                memory.save(kept.model_copy(update={"ledger": needed}))
            except EffectError as error:
                state, waiting = without_unwritten(state, ledger, needed, str(error))
                refused, needed = (*refused, *waiting), extended(state, observed, ledger)
                if needed != kept.ledger:  # Each look would write and log it anew.
                    memory.hold(kept.model_copy(update={"ledger": needed}))
        return Taken(state, needed, refused)

    def failure(self, what: str, remedy: str = KEEPS_TRYING) -> Refusal:
        return refuse(f"server {self.facts.server}", what, remedy)
