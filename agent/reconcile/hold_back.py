"""Holds back the steps of a change that would take something away from other programs. Pure.

Others may have something on what is ours: a port, an address, a route, a flow on our bridge; a
filter or a queueing discipline on our queues. It goes with what it is on, whoever removes that.
foreign_kinds.py lists what is looked for. Healing and changes that keep the bridge or the
queues leave it where it is.

A request for a change that would take it away is refused before anything changes; each refusal
names one object, where it is, and the command that removes it. An undo cannot be refused: a lease
has run out, and nobody may be there. Everything else is then undone, and these steps are held back.
The bridge stays with its NIC, both reach the network as before, and all addresses of the bridge and
its NIC's own routes stay on it, where they work. On the NIC they would be cut off, because it still
is a port; without the NIC the foreign port would be cut off; and with the last address of an
interface the kernel removes everybody's routes and neighbours there. Queues stay with all that is
beneath them.
The lease says `failed` and what is in the way, and the agent tries again until that is gone.

The same holds for what others have put on a NIC since it was taken over: where an address of ours
that somebody set there again would leave it, and theirs would go with that, it stays on the NIC.

The same holds where others have made something in the place of an entry of ours: a flow of its
match and priority (an add would overwrite theirs), a rule of its priority, a route of its table, a
filter among our preferences, an address that we would give, a queueing discipline or queue where
ours would be, a bridge or an interface of its name, another bridge over its NIC, ingress filters on
a NIC that is to be opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from shlex import quote

from placewire.agent.contract.entries import Address, Bridge, Classifier, Queue, Shaper
from placewire.agent.contract.state import ForeignEntry, Ledger, ObservedState, Refusal, refuse
from placewire.agent.reconcile.dependence import needs
from placewire.agent.reconcile.foreign_kinds import MOST_NAMED, PORTS, SHAPERS
from placewire.agent.reconcile.goes_with import goes_with_move
from placewire.agent.reconcile.route_identity import is_of_v6
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step
from placewire.agent.reconcile.taken_places import taken_places
from placewire.agent.reconcile.what_would_go import Place, goes, opened_anew, what_would_go


def hold_back(
    steps: Sequence[Step], observed: ObservedState, ledger: Ledger
) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """The steps that harm nobody, and the reasons why the others are held back."""
    would_go = what_would_go(steps, observed, ledger)
    shaped = {f.key: f for f in observed.foreign if f.collection == SHAPERS}
    wanted = [step.after for step in steps if isinstance(step, EntryStep)]
    nics = {entry.nic for entry in wanted if isinstance(entry, Shaper) and entry.nic in shaped}
    taken = taken_places(steps, observed)
    moving = {at: why for at, step in enumerate(steps) if (why := _cut_off(step, observed))}
    found = [
        *_removals_refused(would_go),
        *(refusal for entries in moving.values() for refusal in entries),
        *(
            refuse(
                f"NIC {nic}",
                f"our shaping would replace {shaped[nic].text}, which is not ours",
                f"take it off first ({_command(shaped[nic])}), then ask again",
            )
            for nic in sorted(nics)
        ),
        *(refusal for _, refusal in taken),
    ]
    staying = _Staying(would_go, opened_anew(steps))
    blocked = [step for step, _ in taken]
    unmade = [step.after for step in blocked if isinstance(step.after, Bridge)]
    elsewhere = {bridge.nic for bridge in unmade}
    theirs = {bridge.name for bridge in unmade} - {bridge.name for bridge in observed.bridges}
    harmless = tuple(
        step
        for step in (_routes_alone(step) if at in moving else step for at, step in enumerate(steps))
        if step is not None
        if step not in blocked and not staying.harmed_by(step) and not _reshapes(step, nics)
        if not needs(step, elsewhere, theirs)
    )
    return harmless, tuple(dict.fromkeys(found))


def _cut_off(step: Step, observed: ObservedState) -> tuple[Refusal, ...]:
    """Why the addresses that the step moves to a bridge stay on their NIC."""
    if not isinstance(step, NicStep) or step.direction != "to bridge":
        return ()
    nic = next((nic for nic in observed.nics if nic.name == step.held.nic), None)
    found = list(goes_with_move(step.held, nic)) if nic is not None else []
    addresses = ", ".join(a.split()[0] for a in step.held.addresses if not is_of_v6(a))
    return tuple(
        refuse(
            f"NIC {step.held.nic}",
            f"moving {addresses} to {step.bridge} would take away {entry.text}, which is not ours",
            f"take that off {step.held.nic} first ({entry.remedy}), then ask again",
        )
        for entry in found[:MOST_NAMED]
    )


def _routes_alone(step: Step) -> Step | None:
    """The move of a NIC's routes and IPv6 addresses, with which nothing goes; None: there are
    none."""
    if not isinstance(step, NicStep):
        return None
    addresses = tuple(address for address in step.held.addresses if is_of_v6(address))
    if not (addresses or step.held.routes):
        return None
    return replace(step, held=step.held.model_copy(update={"addresses": addresses}))


def _removals_refused(would_go: dict[Place, list[ForeignEntry]]) -> Iterator[Refusal]:
    """One for each object; an object that several removals would take away is named once."""
    named: set[ForeignEntry] = set()
    # A bridge first: it is what an operator sees.
    for place in sorted(would_go, key=lambda place: place.kind != "bridge"):
        entries = [entry for entry in would_go[place] if entry not in named]
        named.update(entries)
        where, what = f"{place.kind} {place.name}", "removing it"
        if place.kind == "NIC":
            what = "removing its queues"
        elif place.kind == "queue":
            where = place.name
        for entry in entries[:MOST_NAMED]:
            yield refuse(
                where,
                f"{what} would take away {entry.text}, which is not ours",
                f"take that off {place.name} first ({_command(entry)}), then ask again",
            )
        if len(entries) > MOST_NAMED:
            more = len(entries) - MOST_NAMED
            yield refuse(
                where,
                f"{what} would take away {more} more objects that are not ours",
                "take off those that are named, then ask again",
            )


def _command(entry: ForeignEntry) -> str:
    """Returns the command that removes the entry, or says what can, where the driver does not."""
    clear = f"ovs-vsctl clear port {quote(entry.key)} qos"
    by_kind = {PORTS: "ovs-vsctl del-port PORT", SHAPERS: clear}
    return entry.remedy or by_kind.get(entry.collection, "with the program that made it")


class _Staying:
    """Knows the places that stay because something of others is on them, and with each bridge all
    its addresses. unopened: NICs that ovs-vswitchd is to open anew, which makes their queues anew,
    too; on those that stay as they are nothing is written again."""

    def __init__(self, places: Collection[Place], unopened: Collection[str]) -> None:
        self._bridges = {place.name for place in places if place.kind == "bridge"}
        self._shaping = {place.name for place in places if place.kind == "NIC"}
        self._entries = {place.name for place in places if place.kind not in ("bridge", "NIC")}
        self._closed = self._shaping.intersection(unopened)

    def harmed_by(self, step: Step) -> bool:
        if isinstance(step, NicStep):
            # Without a bridge, the driver gives all back but the queues that others have used.
            return step.direction == "back" and step.bridge in self._bridges
        gone = step.before
        if step.unopened and isinstance(gone, Bridge) and gone.nic in self._shaping:
            return True
        # A filter has nowhere to be before the queues are made anew.
        if isinstance(step.after, Classifier) and step.after.nic in self._closed:
            return True
        if isinstance(gone, (Shaper, Queue)) and gone == step.after:
            return gone.nic in self._closed
        if not goes(step) or gone is None:
            return False
        if isinstance(gone, Bridge):
            return gone.name in self._bridges
        if isinstance(gone, (Shaper, Queue)) and gone.nic in self._shaping:
            return True
        if isinstance(gone, Address) and gone.interface in self._bridges:
            return True
        return isinstance(gone, (Address, Queue)) and gone.key in self._entries


def _reshapes(step: Step, nics: Collection[str]) -> bool:
    """Whether the step gives one of these NICs queues."""
    if isinstance(step, NicStep):
        return False
    return isinstance(step.after, (Shaper, Queue, Classifier)) and step.after.nic in nics
