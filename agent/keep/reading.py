"""What a keeper answers without touching anything: what is, what would change, what differs."""

from __future__ import annotations

from placewire.agent.contract.messages import Observation, Previewed, Verified
from placewire.agent.contract.state import DesiredState, Refusal
from placewire.agent.keep.reports import changes_of
from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.diff import difference
from placewire.agent.reconcile.effective import ineffective_queues
from placewire.agent.reconcile.effects import Network
from placewire.agent.reconcile.foreign import hold_back
from placewire.agent.reconcile.lease import Kept, LeaseRefusedError
from placewire.agent.reconcile.unmarkable import unmarked
from placewire.agent.reconcile.validate import ServerFacts, refusals


def observe(network: Network, kept: Kept) -> Observation:
    state = network.observe(unmarked(kept.desired, kept.ledger))
    return Observation(state=state, lease=kept.lease)


def preview(network: Network, kept: Kept, desired: DesiredState, facts: ServerFacts) -> Previewed:
    """What staging `desired` would change, and all that would be refused, its generation
    included."""
    try:
        leases.check_stage(kept, desired)
    except LeaseRefusedError as error:
        return Previewed(changes=(), refusals=(error.refusal,), lease=kept.lease)
    observed = network.observe(unmarked(desired, kept.ledger))
    if found := refusals(desired, observed, kept.ledger, facts):
        return Previewed(changes=(), refusals=found, lease=kept.lease)
    steps = difference(desired, observed, kept.ledger)
    _, found = hold_back(steps, observed, kept.ledger)
    return Previewed(changes=() if found else changes_of(steps), refusals=found, lease=kept.lease)


def verify(network: Network, kept: Kept, generation: int) -> Verified:
    """Raises LeaseRefusedError where that generation is not in force."""
    if kept.lease.generation != generation or kept.desired is None:
        raise LeaseRefusedError(
            Refusal(
                what=f"generation {generation} is not in force, "
                f"{kept.lease.generation} is ({kept.lease.phase})",
                where="verify",
                remedy="ask for the generation that is in force",
            )
        )
    observed = network.observe(unmarked(kept.desired, kept.ledger))
    return Verified(
        deviations=changes_of(difference(kept.desired, observed, kept.ledger)),
        problems=(*observed.problems, *ineffective_queues(kept.desired, observed)),
    )
