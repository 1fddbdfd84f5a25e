"""Makes a lab: records it, makes namespaces and lines, starts Open vSwitch and the agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from placewire.controller.errors import PlacewireError
from placewire.controller.lab import batches
from placewire.controller.lab import record as records
from placewire.controller.lab.agent_daemons import start_agents
from placewire.controller.lab.down import remove
from placewire.controller.lab.lab import Lab
from placewire.controller.lab.neighbours import require_room
from placewire.controller.lab.record import LabRecord, NicRecord, Recorder, ServerRecord
from placewire.controller.lab.shape import LabServer, LabShape, shape_of
from placewire.controller.lab.switches import start_switches
from placewire.controller.lab.system import (
    inside,
    namespace_exists,
    require_root_and_programs,
    run,
    run_batch,
)
from placewire.controller.plan.plan import Plan


def lab_up(plan: Plan, progress: Callable[[str], None] = lambda text: None) -> Lab:
    """Makes the lab of this plan. Raises PlacewireError where a lab or a namespace of that name
    exists, where the kernel has no room for its neighbours, or where making it fails; then
    everything made is removed again."""
    require_root_and_programs()
    shape = shape_of(plan)
    with records.exclusive():
        _refuse_existing(shape)
        record = _record_of(shape)
        require_room(record, _other_labs())
        recorder = Recorder(record)
        try:
            _make(shape, recorder, progress)
        except BaseException:
            remove(recorder.record, progress)
            raise
    return Lab(recorder.record)


def _make(shape: LabShape, recorder: Recorder, progress: Callable[[str], None]) -> None:
    progress(
        f"lab {shape.name}: {len(shape.servers)} servers on rails {', '.join(shape.rails)}, "
        f"controller at {recorder.record.controller_address}"
    )
    _make_network(shape)
    progress(f"lab {shape.name}: starting {len(shape.servers)} Open vSwitch")
    start_switches(recorder, shape.servers)
    progress(f"lab {shape.name}: starting {len(shape.servers)} agents")
    start_agents(recorder, shape.servers)
    recorder.update(complete=True)
    progress(f"lab {shape.name}: up")


def _refuse_existing(shape: LabShape) -> None:
    if shape.name in records.recorded_names():
        raise PlacewireError(
            f"a lab {shape.name!r} exists already",
            where="lab",
            remedy=f"controller lab down {shape.name}",
        )
    foreign = [name for name in shape.namespaces if namespace_exists(name)]
    if foreign:
        raise PlacewireError(
            f"network namespaces of these names exist and are not of a lab: {', '.join(foreign)}",
            where="lab",
            remedy="give the plan another name, or remove them yourself (`ip netns delete NAME`)",
        )


def _other_labs() -> Iterator[LabRecord]:
    """Those whose record this version can read."""
    for name in records.recorded_names():
        with suppress(PlacewireError):
            if (record := records.load(name)) is not None:
                yield record


def _record_of(shape: LabShape) -> LabRecord:
    return LabRecord(
        name=shape.name,
        servers=tuple(
            ServerRecord(
                name=server.name,
                namespace=server.namespace,
                management_address=server.management.split("/")[0],
                nics=tuple(
                    NicRecord(
                        name=nic.name,
                        bits_per_second=nic.bits_per_second,
                        mtu_bytes=nic.mtu_bytes,
                        rail=nic.rail,
                        address=nic.address,
                    )
                    for nic in server.nics
                ),
            )
            for server in shape.servers
        ),
        controller_namespace=shape.controller_namespace,
        controller_address=shape.controller_address.split("/")[0],
        namespaces=shape.namespaces,
    )


def _make_network(shape: LabShape) -> None:
    run_batch("ip", None, [f"netns add {name}" for name in shape.namespaces])
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(_quiet, shape.namespaces))
        run_batch("ip", shape.controller_namespace, batches.controller_batch(shape))
        list(pool.map(lambda rail: _make_rail(shape, rail), shape.rails))
        list(pool.map(_make_server, shape.servers))
        ends = batches.shaped_interfaces(shape)
        list(pool.map(_without_offload, ends, ends.values()))


def _make_rail(shape: LabShape, rail: str) -> None:
    namespace = shape.rail_namespace(rail)
    run_batch("ip", namespace, batches.rail_batch(shape, rail))
    run_batch("tc", namespace, batches.rail_limits(shape, rail))


def _make_server(server: LabServer) -> None:
    run_batch("ip", server.namespace, batches.server_batch(server))


def _quiet(namespace: str) -> None:
    """Disables IPv6: its neighbour discovery would send on links that are being measured."""
    script = "for f in all default; do f=/proc/sys/net/ipv6/conf/$f/disable_ipv6; "
    script += "[ ! -e $f ] || echo 1 > $f; done"
    run(inside(namespace, ["sh", "-c", script]))


def _without_offload(namespace: str, interfaces: Sequence[str]) -> None:
    """With offload a veth hands over segments of 64 kB, which no bucket of this size lets pass."""
    script = 'for i; do ethtool -K "$i" tx off tso off gso off gro off >/dev/null || exit 1; done'
    run(inside(namespace, ["sh", "-c", script, "sh", *interfaces]))
