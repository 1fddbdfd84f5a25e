"""Changes our queues in the database, and sees to it that the kernel has them."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.agent.contract.entries import Entry, Queue, Shaper
from placewire.agent.drivers import on_queues, ovsdb, traffic_control
from placewire.agent.reconcile.effective import drifted_nics
from placewire.agent.reconcile.steps import EntryStep


def change_queues(remote: str, steps: Sequence[EntryStep], plan_name: str) -> None:
    """steps: of shapers and queues. remote: of the database of Open vSwitch. Raises EffectError,
    also where others have something on queues that go."""
    on_queues.require_free(steps)
    ovsdb.change_queues(remote, steps, plan_name)
    _make_effective(remote, [step.entry for step in steps if step.action == "replace"])


def _make_effective(remote: str, replaced: Sequence[Entry]) -> None:
    """Makes the kernel's classes match the queues of replaced shapers, where they do not. Writing
    the classes again leaves foreign filters alone; it does not help where the HTB is gone, which is
    then installed anew."""
    nics = {entry.nic for entry in replaced if isinstance(entry, Shaper)}
    queues = [entry for entry in replaced if isinstance(entry, Queue) and entry.nic in nics]
    if queues and drifted_nics(queues, traffic_control.read_queues(nics)):
        ovsdb.write_classes_again(remote)
    if queues and (left := drifted_nics(queues, traffic_control.read_queues(nics))):
        on_queues.require_bare(left, queues)
        ovsdb.install_anew(remote, left)
