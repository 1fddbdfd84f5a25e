"""What tests run inside the server's namespace: a keeper on the real drivers and the real disk."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.messages import Observation, Previewed, ReadBackResult
from placewire.agent.contract.state import ApplyReport, DesiredState, LeaseState
from placewire.agent.drivers.server import Server
from placewire.agent.keep.keeper import READ_BACK_SECONDS, Keeper
from placewire.agent.reconcile.steps import Step
from placewire.agent.store import DiskStore
from placewire.agent.wiring import build_keeper, server_facts, way_of

PLAN = "test-plan"  # the plan of tests/agent/states.py


def keeper(config: AgentConfig) -> Keeper:
    return build_keeper(config, Server(config))


def stage(config: AgentConfig, desired: DesiredState, lease_seconds: float = 60) -> ApplyReport:
    return keeper(config).stage(desired, lease_seconds)


def stage_impatiently(config: AgentConfig, desired: DesiredState) -> ApplyReport:
    """For tests in which the read-back never becomes as wanted. What undoes the state is waited for
    as long as ever."""
    server = Server(config)
    store = DiskStore(Path(config.state_dir))
    impatient = Keeper(
        server, store, server_facts(config, server), way_of(config), read_back_seconds=0.5
    )
    apply = server.apply

    def apply_and_undo(steps: Sequence[Step], plan_name: str) -> None:
        server.apply = undo  # type: ignore[method-assign]
        apply(steps, plan_name)

    def undo(steps: Sequence[Step], plan_name: str) -> None:
        impatient._context.read_back_seconds = READ_BACK_SECONDS
        apply(steps, plan_name)

    server.apply = apply_and_undo  # type: ignore[method-assign]
    return impatient.stage(desired, 60)


def commit(config: AgentConfig, generation: int, lease_seconds: float | None = None) -> LeaseState:
    return keeper(config).commit(generation, lease_seconds)


def renew(config: AgentConfig, generation: int, lease_seconds: float) -> LeaseState:
    return keeper(config).renew(generation, lease_seconds)


def restore(config: AgentConfig, generation: int) -> ApplyReport:
    return keeper(config).restore(generation)


def destroy(config: AgentConfig) -> ApplyReport:
    return keeper(config).destroy(PLAN)


def restore_from_marks(config: AgentConfig) -> ApplyReport:
    return keeper(config).restore_from_marks()


def resume(config: AgentConfig) -> ApplyReport | None:
    return keeper(config).resume()


def observe(config: AgentConfig) -> Observation:
    return keeper(config).observe()


def preview(config: AgentConfig, desired: DesiredState) -> Previewed:
    return keeper(config).preview(desired)


def read_back(config: AgentConfig, generation: int) -> ReadBackResult:
    return keeper(config).read_back(generation)


def reaches(address: str, source: str = "") -> bool:
    """Whether an address answers: a closed TCP port that refuses shows that the way there and back
    works."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.settimeout(30)  # A lost packet is sent again; only a hang takes so long.
        probe.bind((source, 0))
        try:
            probe.connect((address, 9))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True
