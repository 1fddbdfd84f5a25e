"""One server's network: has everything read back, and executes steps in their order."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Literal

from placewire.agent.contract.capabilities import Capabilities, TrafficControl
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.entries import Address, DatapathType
from placewire.agent.contract.state import ObservedState
from placewire.agent.drivers import (
    abilities,
    bridges,
    interface_changes,
    interfaces,
    nic_moves,
    observing,
    on_bridges,
    openflow,
    ovsdb,
    policy_routing,
    queues,
    sysctl,
    traffic_control,
)
from placewire.agent.drivers.as_effect_error import as_effect_error
from placewire.agent.drivers.devices import processor
from placewire.agent.drivers.known_devices import KnownDevices
from placewire.agent.drivers.open_vswitch_version import open_vswitch_version
from placewire.agent.drivers.ovsdb_connection import make_durable
from placewire.agent.reconcile.effects import EffectError, NoAnswerError, UnreadableError
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step
from placewire.agent.reconcile.unmarkable import NOTHING_KNOWN, Unmarked

log = logging.getLogger(__name__)

# Collections whose consecutive steps are one transaction together.
_TOGETHER = {"shapers": "queues of the switch", "queues": "queues of the switch"}
_KERNEL: dict[str, Callable[[Sequence[EntryStep]], None]] = {
    "sysctls": sysctl.change_sysctls,
    "classifiers": traffic_control.change_classifiers,
    "routes": policy_routing.change_routes,
    "rules": policy_routing.change_rules,
}


class Server:
    """Implements placewire.agent.reconcile.effects.Network with the kernel and Open vSwitch."""

    def __init__(self, config: AgentConfig) -> None:
        self._remote = config.ovsdb_remote
        self._run_dir = config.openvswitch_run_dir
        self.datapath = _datapath_of(config)
        self.devices = KnownDevices()

    @cached_property
    def traffic_control(self) -> TrafficControl:
        """The kernel's abilities, read once, because a kernel does not change while it runs."""
        return abilities.traffic_control()

    def observe(self, sought: Unmarked) -> ObservedState:
        """Raises UnreadableError where something cannot be read: an interface vanished in between,
        the database does not answer, or a tool says something unexpected."""
        with as_effect_error("reading the server's network", UnreadableError):
            return observing.observe(self._remote, self._run_dir, sought)

    def observe_what_answers(
        self, sought: Unmarked = NOTHING_KNOWN
    ) -> tuple[ObservedState, str | None]:
        """Returns the state and None, or, where Open vSwitch cannot be read, the NICs alone and the
        reason. Raises EffectError."""
        try:
            return self.observe(sought), None
        except UnreadableError as error:
            with as_effect_error("reading the server's interfaces", EffectError):
                return ObservedState(nics=interfaces.InterfaceView().nics({}, ())), str(error)

    def capabilities(self) -> Capabilities:
        """Says less where Open vSwitch does not answer, or NVIDIA's driver has not yet. Raises
        EffectError."""
        datapath: Literal["system", "netdev", "none"] = self.datapath
        found = self.devices.known()
        observed, unreadable = self.observe_what_answers()
        # Only a stage and an undo go by what stands on a NIC, and by all of it: a hello is bounded.
        nics = tuple(nic.model_copy(update={"standing": ()}) for nic in observed.nics)
        if unreadable is not None:
            log.warning("Open vSwitch cannot be read: %s", unreadable)
            datapath = "none"
        return Capabilities(
            datapath=datapath,
            set_queue_honoured=datapath == "system",
            open_vswitch_version=open_vswitch_version(self._remote),
            kernel_version=platform.release(),
            python_version=platform.python_version(),
            nics=nics,
            traffic_control=self.traffic_control,
            offloading=abilities.offloading(nic.name for nic in nics),
            devices=(processor(),) if found is None else found.devices,
            gpu_problem="" if found is None else found.problem,
            gpus_unread=found is None,
        )

    def apply(self, steps: Sequence[Step], plan_name: str) -> None:
        """Executes consecutive steps of one kind as one transaction. Raises EffectError at the
        first that fails; at the end, where a NIC's addresses or routes could not be moved to its
        bridge: nothing else stands on those routes, and one may have lost what it needs for good.
        """
        failures: list[str] = []
        kind: type[EffectError] = EffectError
        for _, group in groupby(steps, key=_kind):
            batch = list(group)
            change, first = batch[0].as_change(), batch[0]
            try:
                with as_effect_error(
                    f"{change.action} {change.collection} {change.key}", EffectError
                ):
                    self._apply_batch(batch, plan_name)
            except EffectError as error:
                failures.append(str(error))
                kind = NoAnswerError if isinstance(error, NoAnswerError) else kind
                if not (isinstance(first, NicStep) and first.direction == "to bridge"):
                    break
        if failures:
            raise kind("; ".join(failures))

    def make_durable(self) -> None:
        with as_effect_error("syncing the Open vSwitch database", EffectError):
            make_durable(self._remote)

    def _apply_batch(self, batch: list[Step], plan_name: str) -> None:
        first = batch[0]
        if isinstance(first, NicStep):
            nic_moves.move_nics([step for step in batch if isinstance(step, NicStep)])
            return
        entries = [step for step in batch if isinstance(step, EntryStep)]
        if first.collection == "bridges":
            bridges.change_bridges(self._remote, self._run_dir, entries, plan_name)
        elif first.collection in _TOGETHER:
            queues.change_queues(self._remote, entries, plan_name)
        elif first.collection == "unused rows":
            ovsdb.remove_unused_rows(self._remote)
        elif first.collection == "flows":
            openflow.change_flows(self._run_dir, entries)
        elif first.collection == "addresses":
            going = {s.before: s for s in entries if s.after is None}
            addresses = [address for address in going if isinstance(address, Address)]
            for address in addresses:
                on_bridges.require_alone(address, going[address].with_it, addresses)
            interface_changes.change_addresses(entries)
        else:
            _KERNEL[first.collection](entries)


def _kind(step: Step) -> tuple[str, bool]:
    is_removal = isinstance(step, EntryStep) and step.after is None
    return _TOGETHER.get(step.collection, step.collection), is_removal


def _datapath_of(config: AgentConfig) -> DatapathType:
    if config.datapath != "auto":
        return config.datapath
    if Path("/sys/module/openvswitch").exists():
        return "system"
    modules = Path(f"/lib/modules/{platform.release()}/modules.dep")
    loadable = modules.exists() and "/openvswitch.ko" in modules.read_text()
    return "system" if loadable else "netdev"
