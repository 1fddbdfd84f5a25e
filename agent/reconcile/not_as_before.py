"""What an undo says of NICs that it could not leave as they were before, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from ipaddress import IPv4Interface
from shlex import quote

from placewire.agent.contract.state import DesiredState, Ledger, NicFacts, ObservedState, TakenOver
from placewire.agent.reconcile.ledger import givable, stays_up_for
from placewire.agent.reconcile.route_identity import identity

# Of what stands on a NIC, so much is named.
MOST_STANDING = 5


def given_back(
    desired: DesiredState | None, observed: ObservedState, ledger: Ledger
) -> tuple[TakenOver, ...]:
    """The entries of NICs that are here and that `desired` does not take over."""
    covered = {bridge.nic for bridge in desired.bridges} if desired else set()
    here = {nic.name for nic in observed.nics} - covered
    return tuple(taken for taken in ledger.nics if taken.nic in here)


def lost_route_sentences(
    desired: DesiredState | None, observed: ObservedState, ledger: Ledger
) -> tuple[str, ...]:
    """One for each route that is not given back to a NIC that `desired` does not take over."""
    return tuple(
        f"NIC {taken.nic} did not get back the route {route}: its source "
        f"{identity(route).source} is on no interface of this server any more"
        for taken in given_back(desired, observed, ledger)
        for route in taken.routes
        if route not in givable(taken, observed).routes
    )


def stays_up_sentences(
    desired: DesiredState | None, observed: ObservedState, ledger: Ledger, now_unix: float
) -> tuple[str, ...]:
    """One for each NIC that `desired` does not take over and that is not set down again. In the
    past, with the time: nobody looks at such a NIC again, and they are told for long."""
    when = datetime.fromtimestamp(now_unix, UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts = {nic.name: nic for nic in observed.nics}
    return tuple(
        f"NIC {taken.nic} was left up on {when}, though it was down before it was taken over: "
        f"{', '.join(found[:MOST_STANDING])} had come since (ip link set {quote(taken.nic)} down)"
        for taken in given_back(desired, observed, ledger)
        if (found := stays_up_for(taken, facts[taken.nic]))
    )


def second_address_sentences(
    given: Iterable[TakenOver], observed: ObservedState
) -> tuple[str, ...]:
    """One for each address that was given back to a NIC on which others have set another one of the
    same subnet meanwhile. The kernel then takes theirs for the first, though ours was there before,
    and removes with it all that came later."""
    facts = {nic.name: nic for nic in observed.nics}
    return tuple(
        f"NIC {taken.nic} has {address} back after {first}, which came since and is of the same "
        f"subnet: packets leave with {first.split('/')[0]}, and whoever removes that removes both "
        f"(unless net.ipv4.conf.{taken.nic}.promote_secondaries is 1)"
        for taken in given
        if taken.nic in facts
        for address, first in _seconds(taken, facts[taken.nic])
    )


def _seconds(taken: TakenOver, nic: NicFacts) -> Iterator[tuple[str, str]]:
    """The addresses of `taken` before which the NIC has one of others, with that."""
    own = {address.split()[0] for address in taken.addresses}
    there = [address for address in nic.addresses if ":" not in address]
    for at, address in enumerate(there):
        before = (other for other in there[:at] if other not in own)
        network = IPv4Interface(address).network
        first = next((other for other in before if IPv4Interface(other).network == network), None)
        if address in own and first is not None:
            yield address, first
