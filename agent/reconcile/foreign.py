"""Holds back the steps of a change that would take something away from other programs. Pure.

Others may have something on what is ours: a port, an address, a route, a flow on our bridge; a
filter or a queueing discipline on our queues. It goes with what it is on, whoever removes that.
ON_BRIDGES and ON_QUEUES list what is looked for. Healing and changes that keep the bridge or the
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

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import NamedTuple, TypeGuard

from placewire.agent.contract.entries import Address, Bridge, Classifier, Entry, Queue, Rule, Shaper
from placewire.agent.contract.state import (
    ForeignEntry,
    Ledger,
    NicFacts,
    ObservedState,
    Refusal,
    TakenOver,
    refuse,
)
from placewire.agent.reconcile.dependence import needs
from placewire.agent.reconcile.route_identity import identities, identity, is_of_v6
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step

# Collections of a ForeignEntry on what is ours; the key of the first two is our bridge, or our NIC.
PORTS = "ports"
SHAPERS = "shapers"
FEATURES = "features"
OTHER_FLOWS = "other flows"  # Groups and meters are among them.
OTHER_ROUTES = "other routes"
OTHER_RULES = "other rules"
# On a NIC (its name is the key): Open vSwitch takes it off when it opens the NIC.
RECEIVERS = "receiving disciplines"
NEIGHBOURS = "neighbours"
NEXTHOPS = "nexthop objects"
INTERFACES = "interfaces"
DISCIPLINES = "queueing disciplines"
CLASSES = "classes"
FILTERS = "filters"
# Rows of others that refer to a QoS or queue of ours, which the database then does not remove.
USERS = "users of our rows"
# What is looked for on each bridge of ours, and on each HTB of ours (with all of its classes). What
# the kernel or Open vSwitch makes by itself is not foreign: IPv6 link-local addresses, routes of
# `proto kernel`, the one flow of a new bridge.
ON_BRIDGES = (
    PORTS, FEATURES, "flows", OTHER_FLOWS, "addresses", "routes", OTHER_ROUTES, NEIGHBOURS,
    NEXTHOPS, INTERFACES, DISCIPLINES,
)  # fmt: skip
ON_QUEUES = ("classifiers", FILTERS, DISCIPLINES, CLASSES, "queues", USERS)
# Of what is on one bridge or NIC, so many are named one by one.
MOST_NAMED = 50


def hold_back(
    steps: Sequence[Step], observed: ObservedState, ledger: Ledger
) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """The steps that harm nobody, and the reasons why the others are held back."""
    would_go = _what_would_go(steps, observed, ledger)
    shaped = {f.key: f for f in observed.foreign if f.collection == SHAPERS}
    wanted = [step.after for step in steps if isinstance(step, EntryStep)]
    nics = {entry.nic for entry in wanted if isinstance(entry, Shaper) and entry.nic in shaped}
    taken = _taken_places(steps, observed)
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
    staying = _Staying(
        bridges={place.name for place in would_go if place.kind == "bridge"},
        shaping={place.name for place in would_go if place.kind == "NIC"},
        entries={place.name for place in would_go if place.kind not in ("bridge", "NIC")},
        unopened={s.after.nic for s in steps if _opens_anew(s) and isinstance(s.after, Bridge)},
    )
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


class _Place(NamedTuple):
    """Something of ours that a step removes. kind: what it is called: bridge, NIC (for its queues),
    address or queue. name: of the bridge or NIC; else the entry's key."""

    kind: str
    name: str


def _what_would_go(
    steps: Sequence[Step], observed: ObservedState, ledger: Ledger
) -> dict[_Place, list[ForeignEntry]]:
    """By what the steps would remove, what of others would go with it."""
    on: dict[str, list[ForeignEntry]] = defaultdict(list)
    for entry in observed.foreign:
        on[entry.on or (entry.key if entry.collection in (PORTS, SHAPERS) else "")].append(entry)
    on.pop("", None)
    going = [step for step in steps if isinstance(step, EntryStep) and _goes(step)]
    bridges = [step.before for step in going if isinstance(step.before, Bridge)]
    nics = {step.before.nic for step in going if isinstance(step.before, Shaper)}
    # Its queues go and come back where ovs-vswitchd opens a NIC anew.
    nics |= {s.after.nic for s in steps if _opens_anew(s) and isinstance(s.after, Bridge)}
    # An ovs-vswitchd that was killed left these queues.
    nics |= {s.held.nic for s in steps if isinstance(s, NicStep) and s.direction == "back"} & {
        nic.name for nic in observed.nics if nic.left_by_switch
    }
    found: dict[_Place, list[ForeignEntry]] = {}
    for nic in sorted(nics):
        beneath = [f for name, entries in on.items() for f in entries if _is_beneath(name, nic)]
        # Open vSwitch removes any discipline with our queues: one of others in their place, too.
        found[_Place("NIC", nic)] = beneath
    for step in going:
        if isinstance(step.before, Queue) and step.before.nic not in nics:
            found[_Place("queue", step.before.key)] = on[step.before.key]
    bare = _bare(steps, observed)
    with_address = {
        address: list(
            goes_with_address(
                address,
                [*on[address.interface], *_routes_from(address, observed, ledger)],
                is_last=address.interface in bare,
            )
        )
        for step in going
        if isinstance(address := step.before, Address)
    }
    for bridge in bridges:
        mine = [entries for a, entries in with_address.items() if a.interface == bridge.name]
        found[_Place("bridge", bridge.name)] = [
            *on[bridge.name],
            *(f for f in on[bridge.nic] if f.collection == SHAPERS and bridge.nic not in nics),
            *(entry for entries in mine for entry in entries if entry.on != bridge.name),
        ]
    for address, entries in with_address.items():  # Also on a bridge that goes: it stays as well.
        found[_Place("address", address.key)] = entries
    kept = {place: entries for place, entries in found.items() if entries}
    # A bridge whose NIC keeps its queues stays, though nothing is on the bridge itself.
    for bridge in bridges:
        if _Place("NIC", bridge.nic) in kept:
            kept.setdefault(_Place("bridge", bridge.name), [])
    return kept


def _goes(step: EntryStep) -> bool:
    """Whether the entry is removed; a bridge also, where it is made anew on another datapath."""
    if isinstance(step.before, Bridge) and isinstance(step.after, Bridge):
        return bool(step.before.nic) and step.before.datapath != step.after.datapath
    return step.after is None


def _opens_anew(step: Step) -> TypeGuard[EntryStep]:
    return isinstance(step, EntryStep) and bool(step.unopened)


def _is_beneath(name: str, nic: str) -> bool:
    """Whether `name` is the NIC, or one of its queues."""
    return name == nic or name.startswith(f"{nic} queue ")


def _bare(steps: Sequence[Step], observed: ObservedState) -> set[str]:
    """The interfaces that these steps leave without an IPv4 address."""
    changes = [s for s in steps if isinstance(s, EntryStep) and s.collection == Address.collection]
    gone = {step.before for step in changes if step.after is None}
    left = {a.interface for a in observed.addresses if a not in gone}
    left |= {s.after.interface for s in changes if isinstance(s.after, Address)}
    left |= {
        entry.on
        for entry in observed.foreign
        if entry.collection == "addresses" and ":" not in entry.key
    }
    return {address.interface for address in gone if isinstance(address, Address)} - left


def goes_with_address(
    address: Address, foreign: Iterable[ForeignEntry], *, is_last: bool
) -> Iterator[ForeignEntry]:
    """What the kernel removes together with this address: a route that has it as its source, and an
    address of the same subnet that came later. With the last IPv4 address of an interface go all
    routes and neighbours of IPv4 there."""
    network, source = IPv4Interface(address.address).network, address.address.split("/")[0]
    for entry in foreign:
        held = entry.key.removeprefix(f"{address.interface} ")
        there = is_last and entry.on == address.interface
        if entry.collection in ("routes", OTHER_ROUTES):
            if (there and not is_of_v6(entry.key)) or f" src {source} " in f"{entry.text} ":
                yield entry
        elif entry.collection == NEIGHBOURS:
            if there and ":" not in held:
                yield entry
        elif (
            entry.collection == "addresses"
            and entry.on == address.interface
            and ":" not in held
            and IPv4Interface(held).network == network
        ):
            yield entry


def goes_with_move(held: TakenOver, nic: NicFacts) -> Iterator[ForeignEntry]:
    """What of others on the NIC the kernel removes where the addresses of `held` leave it: those of
    the same subnet that came later, and with the last IPv4 address all routes and neighbours."""
    there = [address for address in nic.addresses if ":" not in address]
    moved = [a for a in there if a in {address.split()[0] for address in held.addresses}]
    for at, address in enumerate(there):
        if address not in moved and any(
            _same_subnet(former, address) for former in there[:at] if former in moved
        ):
            yield ForeignEntry(
                collection="addresses",
                key=f"{nic.name} {address}",
                text=f"address {address}",
                on=nic.name,
                remedy=f"ip address del {address} dev {nic.name}",
            )
    if not moved or len(moved) < len(there):
        return
    own = identities(held.routes)
    for route in nic.routes:
        if is_of_v6(route) or identity(route) in own:
            continue
        if not any(_is_made_with(a, route) for a in moved):
            yield ForeignEntry(
                collection=OTHER_ROUTES,
                key=route,
                text=f"route {route}",
                on=nic.name,
                remedy=f"ip route del {route}",
            )
    for entry in nic.lost_with_addresses:
        kind, _, words = entry.partition(" ")
        if is_of_v6(words.removeprefix("proxy ")):
            continue
        yield ForeignEntry(
            collection=NEIGHBOURS,
            key=f"{nic.name} {entry}",
            text=f"entry `{entry}`",
            on=nic.name,
            remedy=f"ip {kind} del {words}",
        )


def _same_subnet(one: str, other: str) -> bool:
    return IPv4Interface(one).network == IPv4Interface(other).network


def _is_made_with(address: str, route: str) -> bool:
    """Whether it is the subnet's own route of this address, whoever made it."""
    own = IPv4Interface(address)
    return identity(route).place.destination == str(own.network) and (
        identity(route).source == str(own.ip)
    )


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


def _routes_from(
    address: Address, observed: ObservedState, ledger: Ledger
) -> Iterator[ForeignEntry]:
    """Others' routes over no bridge of ours. None, while another interface has this very address as
    well: they then stay."""
    host = address.address.split("/")[0]
    elsewhere = (at.address for at in observed.addresses_elsewhere)
    held = (*(a for nic in observed.nics for a in nic.addresses), *elsewhere)
    if any(a.split("/")[0] == host for a in held):
        return
    own = identities(route for taken in ledger.nics for route in taken.routes)
    routes = (*(r for nic in observed.nics for r in nic.routes), *observed.routes_elsewhere)
    for route in dict.fromkeys(r for r in routes if identity(r) not in own):
        yield ForeignEntry(
            collection=OTHER_ROUTES,
            key=route,
            text=f"route {route}",
            remedy=f"ip route del {route}",
        )


def _removals_refused(would_go: dict[_Place, list[ForeignEntry]]) -> Iterator[Refusal]:
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
    """What removes it, where the driver does not say."""
    by_kind = {PORTS: "ovs-vsctl del-port PORT", SHAPERS: f"ovs-vsctl clear port {entry.key} qos"}
    return entry.remedy or by_kind.get(entry.collection, "with the program that made it")


def _taken_places(
    steps: Sequence[Step], observed: ObservedState
) -> list[tuple[EntryStep, Refusal]]:
    """The steps that would put an entry where others have put something."""
    taken = {(f.collection, f.key): f for f in observed.foreign}
    ports = {nic.name: nic.bridge for nic in observed.nics}
    ours = {bridge.name: bridge.nic for bridge in observed.bridges}
    found = []
    for step in steps:
        if not isinstance(step, EntryStep) or step.after is None or step.collection == SHAPERS:
            continue
        entry = step.after
        foreign = taken.get((entry.collection, _place(entry)))
        text, remedy = foreign and foreign.text, foreign and foreign.remedy
        if text is None and isinstance(entry, Bridge):
            master = ports.get(entry.nic)
            if master not in (None, entry.name):
                text = f"{entry.nic} is a port of {master}"
            opens = step.unopened or ours.get(entry.name) != entry.nic
            receiver = taken.get((RECEIVERS, entry.nic)) if opens else None
            if text is None and receiver is not None:
                refusal = refuse(
                    f"NIC {entry.nic}",
                    f"Open vSwitch would take {receiver.text} off it when it opens the NIC, which "
                    "is not ours",
                    f"remove or move that ({receiver.remedy}); ours follows",
                )
                found.append((step, refusal))
        if text is not None:
            refusal = refuse(
                f"{entry.collection} {entry.key}",
                f"something that is not ours is in its place: {text}",
                f"remove or move that{f' ({remedy})' if remedy else ''}; ours follows",
            )
            found.append((step, refusal))
    return found


def _place(entry: Entry) -> str:
    """The key of a ForeignEntry in the place of this entry."""
    if isinstance(entry, Rule):
        return str(entry.priority)
    return entry.nic if isinstance(entry, Classifier) else entry.key


class _Staying:
    """What stays because something of others is on it: bridges and NICs (their queues) by name,
    other entries by key; and with each bridge, all its addresses. unopened: NICs that ovs-vswitchd
    is to open anew, which makes their queues anew, too; on those that stay as they are nothing is
    written again."""

    def __init__(
        self,
        bridges: Collection[str],
        shaping: Collection[str],
        entries: Collection[str],
        unopened: Collection[str],
    ) -> None:
        self._bridges, self._shaping, self._entries = bridges, shaping, entries
        self._closed = {nic for nic in unopened if nic in shaping}

    def harmed_by(self, step: Step) -> bool:
        if isinstance(step, NicStep):
            # Without a bridge, the driver gives all back but the queues that others have used.
            return step.direction == "back" and step.bridge in self._bridges
        gone = step.before
        if _opens_anew(step) and isinstance(gone, Bridge) and gone.nic in self._shaping:
            return True
        # A filter has nowhere to be before the queues are made anew.
        if isinstance(step.after, Classifier) and step.after.nic in self._closed:
            return True
        if isinstance(gone, (Shaper, Queue)) and gone == step.after:
            return gone.nic in self._closed
        if not _goes(step) or gone is None:
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
