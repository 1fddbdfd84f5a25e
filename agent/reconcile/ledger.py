"""The ledger: what a server had before Placewire changed it, and what Placewire owes it. Pure.

An entry is on disk before its NIC is taken over, and leaves the ledger once the NIC has all of it
back. From then on it is its owner's, who may change it. A NIC that is away at that moment can be
given nothing: its entry becomes a debt. A debt stays until its NIC is back and has everything, or
until an operator gives it up.

A NIC that comes back is the same NIC if it has its name and its MAC address. One that has only the
name may be another adapter in the same slot; one that has only the MAC address was renamed by
somebody who may want it so. While a plan is in force, its names rule: what is a port of our bridge
under the NIC's name is the NIC. Another adapter that is no port of ours is its owner's, and what
the former one held is owed to that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from shlex import quote

from placewire.agent.contract.command import AGENT
from placewire.agent.contract.entries import Address, Bridge, Sysctl
from placewire.agent.contract.state import (
    Collections,
    DesiredState,
    Ledger,
    NicFacts,
    ObservedState,
    Refusal,
    TakenOver,
    refuse,
)
from placewire.agent.reconcile.command_words import named
from placewire.agent.reconcile.route_identity import identities, identity
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step


def extended(desired: DesiredState, observed: ObservedState, ledger: Ledger) -> Ledger:
    """The ledger that must be on disk before `desired` is applied. A value that the ledger has
    already is kept, because the observed one may be Placewire's own. What is owed to a NIC that
    `desired` takes over is what that NIC held."""
    ledger = with_replaced_owed(observed, ledger)
    facts = {nic.name: nic for nic in observed.nics}
    known = {taken.nic for taken in ledger.nics}
    on_netdev = {bridge.nic for bridge in desired.bridges if _makes_promiscuous(bridge)}
    nics = [_as_it_is_now(taken, facts, on_netdev) for taken in ledger.nics]
    sysctls, owed = [*ledger.sysctls], [*ledger.owed]
    for bridge in desired.bridges:
        nic = facts.get(bridge.nic)
        if nic is None or nic.name in known:
            continue
        debt = next((debt for debt in owed if is_of(debt, nic)), None)
        if debt is None:
            nics.append(_held(nic, bridge, desired.take_over))
        else:
            owed.remove(debt)
            made = debt.made_promiscuous or _makes_promiscuous(bridge)
            update = {"bridge": bridge.name, "sysctls": (), "made_promiscuous": made}
            nics.append(debt.model_copy(update=update))
            sysctls += debt.sysctls
    own = {bridge.name for bridge in desired.bridges}
    wanted = {sysctl.name for sysctl in desired.sysctls} - {sysctl.name for sysctl in sysctls}
    sysctls += [
        sysctl
        for sysctl in observed.sysctls
        # Those of bridges' interfaces go with the interface.
        if sysctl.name in wanted and sysctl.interface not in own
    ]
    extended = Ledger(
        nics=tuple(nics), sysctls=tuple(sysctls), addresses=ledger.addresses, owed=tuple(owed)
    )
    return with_addresses([desired], extended)


def with_replaced_owed(observed: ObservedState, ledger: Ledger) -> Ledger:
    """The ledger in which what replaced NICs held is owed to them."""
    replaced = [taken for taken in ledger.nics if is_replaced(taken, observed)]
    debts = [t.model_copy(update={"sysctls": sysctls_of(t.nic, ledger)}) for t in replaced]
    moved = {sysctl.name for debt in debts for sysctl in debt.sysctls}
    return ledger.model_copy(
        update={
            "nics": tuple(taken for taken in ledger.nics if taken not in replaced),
            "sysctls": tuple(s for s in ledger.sysctls if s.name not in moved),
            "owed": (*ledger.owed, *debts),
        }
    )


def is_replaced(taken: TakenOver, observed: ObservedState) -> bool:
    """Whether another adapter has the name of the NIC, and is no port of ours."""
    ports = {bridge.nic for bridge in observed.bridges}
    return taken.nic not in ports and any(
        nic.name == taken.nic and not is_of(taken, nic) for nic in observed.nics
    )


def with_addresses(states: Iterable[DesiredState], ledger: Ledger) -> Ledger:
    """The ledger with the addresses that these states give to bridges."""
    given = (address for state in states for address in state.addresses)
    addresses = tuple(dict.fromkeys((*ledger.addresses, *given)))
    return ledger.model_copy(update={"addresses": addresses})


def settled(
    desired: DesiredState | None,
    observed: ObservedState,
    ledger: Ledger,
    baselines: Collection[DesiredState] = (),
) -> Ledger:
    """The ledger once `observed` was read back and found as `desired` says: what `desired` does not
    take over was given back, or is owed from now on. Only the addresses that a baseline gives to
    bridges stay: they may have to come back while the disk is full."""
    facts = {nic.name: nic for nic in observed.nics}
    covered = {bridge.nic for bridge in desired.bridges} if desired else set()
    names = {sysctl.name for sysctl in desired.sysctls} if desired else set()
    nics, debts = [], []
    for taken in ledger.nics:
        nic = facts.get(taken.nic)
        if taken.nic in covered:
            nics.append(taken)
        elif nic is None or not has_back(givable(taken, observed), nic):
            debts.append(taken.model_copy(update={"sysctls": sysctls_of(taken.nic, ledger)}))
    moved = {sysctl.name for debt in debts for sysctl in debt.sysctls}
    there = {sysctl.name for sysctl in observed.sysctls}
    sysctls = (
        sysctl
        for sysctl in ledger.sysctls
        if sysctl.name not in moved and (sysctl.name in names or sysctl.name not in there)
    )
    states = [*baselines, *([desired] if desired else [])]
    given = {address for state in states for address in state.addresses}
    return Ledger(
        nics=tuple(nics),
        sysctls=tuple(sysctls),
        addresses=tuple(address for address in ledger.addresses if address in given),
        owed=(*ledger.owed, *debts),
    )


def has_back(taken: TakenOver, nic: NicFacts) -> bool:
    """Whether the NIC has all that it held before it was taken over, and nothing of ours. An
    address that another program has set there since, with another broadcast address or label for
    example, is its owner's, and the kernel takes no second one."""
    return (
        _named(taken.addresses) <= _named(nic.address_commands)
        and identities(taken.routes) <= identities(nic.routes)
        and (taken.was_up == nic.up or bool(stays_up_for(taken, nic)))
        # A killed ovs-vswitchd leaves its NICs promiscuous.
        and (taken.was_promiscuous or not taken.made_promiscuous or not nic.promiscuous)
        # A NIC with a queueing discipline of its own is never taken over, so this one is ours.
        and not nic.left_by_switch
    )


def givable(taken: TakenOver, observed: ObservedState) -> TakenOver:
    """Returns what can be given back of this: no route whose source this server lacks. The kernel
    removes such a route with that address, also from a NIC that nobody took over, and takes it back
    from nobody."""
    sources = hosts((*taken.addresses, *(a for _, a in _addresses_beside("", None, observed))))
    elsewhere = (*observed.bridge_routes, *observed.routes_elsewhere)
    there = (*elsewhere, *(route for nic in observed.nics for route in nic.routes))
    sources |= {"", *(identity(route).source for route in there)}
    routes = tuple(route for route in taken.routes if identity(route).source in sources)
    return taken if routes == taken.routes else taken.model_copy(update={"routes": routes})


def _named(addresses: Iterable[str]) -> set[tuple[str, ...]]:
    return set(map(named, addresses))


def stays_up_for(taken: TakenOver, nic: NicFacts) -> tuple[str, ...]:
    """What others have put on a NIC since it was taken over, for which it is not set down again,
    though it was down then."""
    return came_since(taken, nic.standing) if nic.up and not taken.was_up else ()


def came_since(taken: TakenOver, standing: Iterable[str]) -> tuple[str, ...]:
    """standing: as NicFacts has it."""
    routes = identities(taken.routes)
    known = {*taken.standing, *(f"address {address.split()[0]}" for address in taken.addresses)}
    return tuple(
        one
        for one in standing
        if one not in known
        and not (one.startswith("route ") and identity(one.removeprefix("route ")) in routes)
    )


def is_of(debt: TakenOver, nic: NicFacts) -> bool:
    """Whether the debt is owed to this NIC."""
    return nic.name == debt.nic and debt.mac in ("", nic.mac)


def payable(
    desired: DesiredState | None, observed: ObservedState, ledger: Ledger
) -> tuple[TakenOver, ...]:
    """The debts whose NIC is here and free: no bridge's port, and not wanted by `desired`. A debt
    also waits while one of its addresses is in use elsewhere on this server."""
    wanted = {bridge.nic for bridge in desired.bridges} if desired else set()
    here = [nic for nic in observed.nics if nic.name not in wanted]
    return tuple(
        debt
        for debt in ledger.owed
        if any(is_of(debt, nic) for nic in here) and not _in_the_way(debt, desired, observed)
    )


def waiting_sentences(
    desired: DesiredState | None, observed: ObservedState, ledger: Ledger
) -> tuple[str, ...]:
    """What keeps debts from being paid to NICs that are here."""
    return tuple(
        f"NIC {debt.nic}{_mac(debt)} is owed {_what(debt)}, and waits for it: "
        f"{'; '.join(in_the_way)}"
        for debt in ledger.owed
        if any(is_of(debt, nic) for nic in observed.nics)
        and (in_the_way := _in_the_way(debt, desired, observed))
    )


def _in_the_way(
    debt: TakenOver, desired: DesiredState | None, observed: ObservedState
) -> list[str]:
    bridges = [nic.bridge for nic in observed.nics if nic.name == debt.nic and nic.bridge]
    owed = hosts(debt.addresses)
    return [
        *(f"it is a port of {bridge}" for bridge in bridges),
        *(
            f"{address} is on {interface}"
            for interface, address in _addresses_beside(debt.nic, desired, observed)
            if hosts([address]) <= owed
        ),
    ]


def _addresses_beside(
    nic: str, desired: DesiredState | None, observed: ObservedState
) -> Iterator[tuple[str, str]]:
    """(interface, address) on this server but for those of the NIC."""
    moved = (*observed.addresses, *observed.moved_addresses)
    given = dict.fromkeys((*moved, *(desired.addresses if desired else ())))
    for entry in (*given, *observed.addresses_elsewhere):
        yield entry.interface, entry.address
    for other in observed.nics:
        if other.name != nic:
            yield from ((other.name, address) for address in other.addresses)
    for foreign in observed.foreign:
        if foreign.collection == Address.collection and foreign.on:
            yield foreign.on, foreign.key.removeprefix(f"{foreign.on} ")


def hosts(addresses: Iterable[str]) -> set[str]:
    """The addresses alone, without their prefix lengths and further words."""
    return {address.split()[0].split("/")[0] for address in addresses}


def payment(debts: Collection[TakenOver], observed: ObservedState) -> tuple[Step, ...]:
    """The steps that give their NICs what is still missing of these debts, which are payable. A NIC
    that is back belongs to its owner: it is not set down, and addresses that it has are left."""
    facts = {nic.name: nic for nic in observed.nics}
    current = {sysctl.name: sysctl for sysctl in observed.sysctls}
    steps: list[Step] = []
    for debt in debts:
        nic = facts.get(debt.nic)
        steps += [
            EntryStep(current[former.name], former)
            for former in debt.sysctls
            if former.name in current and current[former.name] != former
        ]
        if nic is None:
            steps.append(NicStep("back", "", debt))
            continue
        # Our switch made the NIC promiscuous, and a NIC that is moved away keeps that flag.
        held = debt.model_copy(update={"was_up": debt.was_up or nic.up})
        if not has_back(held, nic):
            steps.append(NicStep("back", "", held))
    return tuple(steps)


def without_debts(ledger: Ledger, paid: Collection[TakenOver]) -> Ledger:
    return ledger.model_copy(update={"owed": tuple(d for d in ledger.owed if d not in paid)})


def owed_sentences(ledger: Ledger) -> tuple[str, ...]:
    return tuple(f"NIC {debt.nic}{_mac(debt)} was away and is owed {_what(debt)}"
                 for debt in ledger.owed)  # fmt: skip


def owed_refusals(server: str, ledger: Ledger) -> tuple[Refusal, ...]:
    """The debts as what is left to do of an undo."""
    return tuple(
        refuse(
            f"server {server}, NIC {debt.nic}{_mac(debt)}",
            "is away, has lost its name to another, is a port of somebody's bridge, or its address "
            f"is in use elsewhere: it is owed {_what(debt)}",
            "bring it back under its name and free, and the agent gives it that within a minute; "
            f"if it never comes back, stop the agent and run `{AGENT} restore --give-up "
            f"{quote(debt.nic)}`",
        )
        for debt in ledger.owed
    )


def marked_as_held(bridge: Bridge, wanted: Collections, ledger: Ledger) -> TakenOver | None:
    """Returns what the mark of a bridge of `wanted` must say that its NIC held; None where the
    ledger does not have the NIC. The mark is a second witness beside the disk. It also tells the
    addresses that Placewire gives to the bridge."""
    taken = next((taken for taken in ledger.nics if taken.nic == bridge.nic), None)
    if taken is None:
        return None
    changed = {sysctl.name for sysctl in wanted.sysctls}
    sysctls = tuple(s for s in sysctls_of(bridge.nic, ledger) if s.name in changed)
    both = (*wanted.addresses, *ledger.addresses)
    given = dict.fromkeys(a.address for a in both if a.interface == bridge.name)
    return taken.model_copy(
        update={"bridge": bridge.name, "sysctls": sysctls, "given": tuple(given)}
    )


def tells_all(mark: TakenOver | None, needed: TakenOver) -> bool:
    """Whether a bridge's mark is as needed. It may name addresses that the bridge no longer has."""
    if mark is None or not set(needed.given) <= set(mark.given):
        return False
    return mark.model_copy(update={"given": needed.given}) == needed


def ledger_of_marks(observed: ObservedState, over_nic: Collection[TakenOver]) -> Ledger:
    """The ledger as far as the marks of bridges tell it. over_nic: what is known of bridges whose
    mark does not say what their NIC held."""
    marked = {held.bridge for held in observed.held}
    held = (*observed.held, *(taken for taken in over_nic if taken.bridge not in marked))
    return Ledger(
        nics=tuple(taken.model_copy(update={"sysctls": (), "given": ()}) for taken in held),
        sysctls=tuple(sysctl for taken in held for sysctl in taken.sysctls),
        addresses=tuple(
            Address(interface=taken.bridge, address=address)
            for taken in held
            for address in taken.given
        ),
    )


def sysctls_of(interface: str, ledger: Ledger) -> tuple[Sysctl, ...]:
    return tuple(s for s in ledger.sysctls if s.interface == interface)


def _held(nic: NicFacts, bridge: Bridge, take_over: Collection[str]) -> TakenOver:
    """A NIC whose addresses may not be taken over keeps them."""
    keeps = bool(nic.addresses) and nic.name not in take_over
    return TakenOver(
        nic=nic.name,
        mac=nic.mac,
        addresses=() if keeps else nic.address_commands,
        routes=() if keeps else nic.routes,
        was_up=nic.up,
        # ovs-vswitchd makes its own ports promiscuous.
        was_promiscuous=nic.promiscuous and nic.bridge is None,
        made_promiscuous=_makes_promiscuous(bridge),
        bridge=bridge.name,
        standing=() if nic.up else nic.standing,
    )


def _makes_promiscuous(bridge: Bridge) -> bool:
    """Whether ovs-vswitchd sets its ports so, as `ip` shows it. The kernel datapath counts itself
    beside that flag."""
    return bridge.datapath == "netdev"


def _as_it_is_now(
    taken: TakenOver, facts: Mapping[str, NicFacts], on_netdev: Collection[str]
) -> TakenOver:
    """A NIC that took the place of another one on our bridge is the one that the plan names: its
    adapter was changed, or its driver gives it another MAC address at each start. on_netdev: NICs
    that the userspace datapath has from now on."""
    if taken.nic in on_netdev and not taken.made_promiscuous:
        taken = taken.model_copy(update={"made_promiscuous": True})
    nic = facts.get(taken.nic)
    if nic is None or not taken.mac or not taken.bridge or nic.bridge != taken.bridge:
        return taken
    return taken.model_copy(update={"mac": nic.mac})


def _mac(debt: TakenOver) -> str:
    return f" ({debt.mac})" if debt.mac else ""


def _what(debt: TakenOver) -> str:
    addresses = [f"address {address.split()[0]}" for address in debt.addresses]
    routes = [f"route {route}" for route in debt.routes]
    sysctls = [f"{sysctl.name} = {sysctl.value}" for sysctl in debt.sysctls]
    return ", ".join([*addresses, *routes, *sysctls]) or "its former flags"
