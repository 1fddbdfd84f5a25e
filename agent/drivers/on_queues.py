"""Finds what of others is on the HTB of our NICs, or in its place, and would go with our queues.

Open vSwitch removes a port's root discipline with our QoS, whatever it is and whatever is on it. So
whoever removes queues asks here once more right before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from shlex import quote

from placewire.agent.contract.entries import Queue, Shaper
from placewire.agent.contract.state import EffectiveQueue, ForeignEntry
from placewire.agent.drivers.interfaces import InterfaceView
from placewire.agent.drivers.on_bridges import require_nothing
from placewire.agent.drivers.traffic_control import (
    HTB_HANDLE,
    read_classifiers,
    read_foreign,
    read_queues,
)
from placewire.agent.reconcile.foreign_kinds import SHAPERS
from placewire.agent.reconcile.steps import EntryStep


def read_on_queues(
    view: InterfaceView,
    nics: Iterable[str],
    effective: Sequence[EffectiveQueue],
    queue_ids: Mapping[str, Collection[int]],
) -> Iterator[ForeignEntry]:
    """Yields the objects of others on these NICs' classes and in the place of our HTB, but for the
    filters on the HTB itself, which traffic_control.read_classifiers returns.

    effective: the classes of these NICs. queue_ids: by NIC that the database gives a QoS of ours,
    the ids of the queues in it.
    """
    for nic in nics:
        classes = [queue.queue_id for queue in effective if queue.nic == nic]
        disciplines = view.disciplines(nic)
        yield from read_foreign(nic, classes, disciplines, queue_ids.get(nic))
        root = next((one for one in disciplines if not one.parent), None)
        if root is None:
            continue
        as_ours = (root.kind, root.handle) == ("htb", HTB_HANDLE)
        if not (as_ours and (nic in queue_ids or view.has_htb_of_switch(nic))):
            yield ForeignEntry(
                collection=SHAPERS,
                key=nic,
                text=f"{root.kind} queueing discipline {root.handle} of {nic}",
                on=nic,
                remedy=f"tc qdisc del dev {quote(nic)} root",
            )


def require_free(steps: Sequence[EntryStep]) -> None:
    """Raises EffectError where others have something on the shapers and queues that these steps
    remove, or a discipline where a new shaper would come."""
    gone = [step.before for step in steps if step.after is None]
    queues = [entry for entry in gone if isinstance(entry, Queue)]
    bare = {entry.nic for entry in gone if isinstance(entry, Shaper)}
    free = {s.after.nic for s in steps if isinstance(s.after, Shaper) and s.before is None}
    keys = {queue.key for queue in queues}
    if nics := bare | free | {queue.nic for queue in queues}:
        require_nothing(
            f
            for nic, f in _on(sorted(nics), queues)
            if nic in bare or f.on in keys or (nic in free and f.collection == SHAPERS)
        )


def require_bare(nics: Collection[str], queues: Sequence[Queue]) -> None:
    """Raises EffectError where others have something on the HTB of these NICs, or in its place.
    queues: those of ours there."""
    require_nothing(f for _, f in _on(sorted(nics), queues))


def _on(nics: Sequence[str], queues: Iterable[Queue]) -> Iterator[tuple[str, ForeignEntry]]:
    """(NIC, what of others is there)"""
    view = InterfaceView()
    there = [nic for nic in nics if nic in view.names]
    effective = read_queues(there)
    # A class that is in the database is ours, whether or not a step is about it.
    ids = {nic: {queue.queue_id for queue in queues if queue.nic == nic} for nic in there}
    for nic in there:
        for entry in (
            *read_classifiers([nic])[1],
            *read_on_queues(view, [nic], effective, ids),
        ):
            yield nic, entry
