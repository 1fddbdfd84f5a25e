"""Calibration: is every path measured once and alone, and are its p0 and rate found?"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.job.namespaces import Namespaces
from placewire.job.calibration.calibrate import _paths
from placewire.job.calibration.exchanges import (
    SMALL_BYTES,
    calibrating_devices,
    everybody,
    exchange_placement,
    exchanges,
    paths_from,
)
from placewire.job.calibration.message_work import Work, message_work
from placewire.job.calibration.path_fit import fit_path
from placewire.job.contract.specification import (
    Calibrated,
    MeasuredPath,
    RailInterface,
    RankSpec,
)
from placewire.job.messages.rank_messages import rank_messages
from placewire.optimizer.cluster import Nic
from placewire.optimizer.cluster_plan.payload import payload_fraction
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.placement import Placement
from tests.job.ranks import LONGEST_SECONDS, end, start_ranks
from tests.measured import until
from tests.placements import cluster_of, placement_of

SIZES = (25_000, 50_000, 100_000)


def trips(setup: float, rate: float, burst_bytes: int = 0) -> dict[int, list[float]]:
    """Round trips of a path: a message of n bytes, and an answer of the smallest size."""

    def one_way(size: int) -> float:
        return setup + max(0, size - burst_bytes) * 8 / rate

    return {n: [one_way(n) + one_way(SMALL_BYTES)] * 3 for n in (SMALL_BYTES, *SIZES)}


def test_the_worked_example() -> None:
    """64 bytes go there and back in 1.02 ms: p0 is 0.5 ms each way, and 0.01 ms are their own time.
    25 kB more take 4 ms more, which is 50 Mbit/s."""
    there = 0.0005 + 64 * 8 / 50e6
    seconds = {64: [2 * there], 25_000: [there + 0.0045], 50_000: [there + 0.0085]}
    fit = fit_path(seconds)
    assert fit.bits_per_second == pytest.approx(50e6)
    assert fit.setup_seconds == pytest.approx(0.0005)


def test_a_burst_after_a_pause_is_no_throughput() -> None:
    fit = fit_path(trips(0.0004, 40e6, burst_bytes=6000))
    assert fit.bits_per_second == pytest.approx(40e6)
    assert fit.setup_seconds == pytest.approx(0.0004, rel=0.05)


def test_noise_and_a_disturbed_message_change_little() -> None:
    chance = random.Random(7)
    noisy = {
        size: [t + abs(chance.gauss(0, 5e-5)) for t in seconds * 3] + [0.2]
        for size, seconds in trips(0.0004, 40e6).items()
    }
    fit = fit_path(noisy)
    assert fit.bits_per_second == pytest.approx(40e6, rel=0.02)
    assert fit.setup_seconds == pytest.approx(0.0004, rel=0.15)


def test_what_did_not_take_longer_has_no_rate() -> None:
    with pytest.raises(ValueError, match="of 50000 bytes took no longer"):
        fit_path({64: [0.001], 25_000: [0.01], 50_000: [0.01]})


def test_a_path_that_other_work_disturbed_is_left_out_and_ends_no_job() -> None:
    spec = RankSpec(
        kind="calibrate", rank=0, world_size=2, device="s1/0", master_address="127.0.0.1",
        master_tcp_port=1, rail_interfaces=(), placement_file="", steps=0,
    )  # fmt: skip
    disturbed = trips(0.0004, 40e6) | {SIZES[0]: [3.0, 0.1]}
    measured: dict[tuple[str, tuple[str, ...]], dict[int, Sequence[float]]] = {
        ("s2/0", ("a",)): {**disturbed},
        ("s2/0", ("b",)): {**trips(0.0004, 40e6)},
    }
    (path,) = _paths(spec, measured)
    assert path.rails == ("b",) and path.bits_per_second == pytest.approx(40e6)


def placement(servers: int, rails: tuple[str, ...] = ("a", "b")) -> Placement:
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 0.01}) for i in "pq"]
    graph = build_graph(rows, [TensorRow("p", ("q",), 1000)])
    return placement_of(graph, cluster_of(servers, rails, 40e6), {"p": "s1/0", "q": "s2/0"})


def test_paths_that_are_due_are_known_without_measuring() -> None:
    """Each counts once, however many exchanges it takes; missing ones were left out."""
    of = placement(3).model_copy(update={"rates_bits_per_second": (("s1", "s2", "a", 0.5e6),)})
    assert paths_from("s1/0", of, of.cluster.rails) == {
        (destination, (rail,)) for destination in ("s2/0", "s3/0") for rail in "ab"
    }


@pytest.mark.parametrize("servers", [2, 3, 4, 5])
def test_every_path_is_measured_once_and_has_its_nics_to_itself(servers: int) -> None:
    of = placement(servers)
    measured: Counter[tuple[str, str, str]] = Counter()
    for exchange in exchanges(of, of.cluster.rails):
        ends = [device for pair in exchange.bytes for device in pair]
        assert len(set(ends)) == len(ends), "one peer at a time"
        (rail,) = exchange.rails
        measured.update((a, b, rail) for a, b in exchange.bytes)
    devices = calibrating_devices(of)
    paths = {(a, b, r) for a in devices for b in devices for r in "ab" if a != b}
    assert set(measured) == paths
    assert set(measured.values()) == {4}, "small messages, and three larger sizes"


def test_measuring_takes_as_long_as_is_meant_to_where_paths_are_as_fast_as_said() -> None:
    of = placement(4)
    seconds = sum(
        exchange.messages * max(exchange.bytes.values()) * 8 / 40e6
        for exchange in exchanges(of, of.cluster.rails)
    )
    assert 5 < seconds < 8


def test_a_slow_path_is_measured_by_itself_with_few_messages() -> None:
    """A slow queue beside quick ones must not take all of the time."""
    of = placement(4).model_copy(
        update={"rates_bits_per_second": (("s1", "s2", "a", 0.5e6), ("s2", "s1", "a", 20e6))}
    )
    slow = ("s1/0", "s2/0")
    sizes: dict[tuple[str, ...], list[int]] = {}
    for exchange in exchanges(of, of.cluster.rails):
        if slow in exchange.bytes and exchange.rails == ("a",):
            assert set(exchange.bytes) == {slow}
            sizes.setdefault(exchange.rails, []).append(exchange.bytes[slow] * exchange.messages)
    (taken,) = sizes.values()
    assert len(taken) == 3, "small ones, and two larger sizes"
    assert sum(taken) * 8 / 0.5e6 < 2


def test_without_a_choice_of_rails_all_are_measured_together() -> None:
    of = placement(2).model_copy(update={"backend": "nccl"})
    assert {exchange.rails for exchange in exchanges(of, of.cluster.rails)} == {("a", "b")}


def test_source_and_destination_agree_on_messages_and_answers() -> None:
    of = placement(3)
    one = everybody(of, ("a", "b"))
    made = exchange_placement(of, one)
    ends = {device: rank_messages(made, device, ("a", "b")) for device in calibrating_devices(of)}
    for device, messages in ends.items():
        sent = {m.index: m for some in messages.sends.values() for m in some}
        assert {m.peer_device for m in sent.values()} == set(ends) - {device}
        for index, message in sent.items():
            (theirs,) = [m for m in ends[message.peer_device].receives if m.index == index]
            assert theirs.parts == message.parts and theirs.bytes == message.bytes


def calibrate(
    network: Namespaces, folder: Path, of: Placement, **options: Any
) -> list[MeasuredPath]:
    ranks = start_ranks(
        of,
        folder,
        kind="calibrate",
        steps=0,
        prefixes=[network.prefix(server) for server in network.servers],
        master_address=network.address("s1", "a"),
        rail_interfaces=tuple(
            RailInterface(rail=rail, interface=network.nic(rail), address="")
            for rail in of.cluster.rails
        ),
        **options,
    )
    try:
        codes = [rank.finish(LONGEST_SECONDS) for rank in ranks]
    finally:
        end(ranks)
    assert codes == [0] * len(ranks), [(rank.events, rank.errors[-2000:]) for rank in ranks]
    events = [e for rank in ranks for e in rank.events if isinstance(e, Calibrated)]
    for event in events:
        assert event.message_seconds is not None and event.message_seconds_per_byte is not None
        assert 1e-6 < event.message_seconds < 0.05
        assert 0.0 <= event.message_seconds_per_byte < 1e-6
    return [path for event in events for path in event.paths]


def test_small_exchanges_say_what_a_message_takes_and_large_ones_what_its_bytes_do() -> None:
    """Messages of 0.1 ms and 2 ns a byte; one exchange in five was disturbed."""
    small = [Work(40, 40, 40 * 1e-4)] * 4 + [Work(40, 40, 1.0)]
    large = [Work(10, 10**7, 10 * 1e-4 + 10**7 * 2e-9)] * 4 + [Work(10, 10**7, 2.0)]
    between = [Work(10, 10**5, 5.0)]
    found = message_work([*large, *small, *between])
    assert found == pytest.approx((1e-4, 2e-9), rel=1e-3)
    assert message_work(small) == pytest.approx((1e-4, 0.0))
    assert message_work(large) is None


@pytest.mark.network
def test_the_rate_of_a_shaped_path_is_found(tmp_path: Path) -> None:
    """HTB on veth pairs; nothing but gloo and this program is measured on top of it, with the
    chunks and windows that `job` sharing has."""
    wire = {"a": 50e6, "b": 20e6}
    of = placement(2)
    servers = tuple(
        server.model_copy(
            update={
                "nics": tuple(
                    Nic(rail=rail, rate_bits_per_second=rate * payload_fraction())
                    for rail, rate in wire.items()
                )
            }
        )
        for server in of.cluster.servers
    )
    cluster = of.cluster.model_copy(update={"servers": servers})
    of = of.model_copy(update={"cluster": cluster, "sharing": "job"})

    def found(paths: list[MeasuredPath]) -> dict[str, list[float]]:
        return {rail: [p.bits_per_second for p in paths if p.rails == (rail,)] for rail in wire}

    def quickly(paths: list[MeasuredPath]) -> bool:
        return all(0 < path.setup_seconds < 0.02 for path in paths)

    carried = {
        rail: [pytest.approx(rate * payload_fraction(), rel=0.1)] * 2 for rail, rate in wire.items()
    }
    with Namespaces({rail: {"s1": rate, "s2": rate} for rail, rate in wire.items()}) as network:
        paths = until(
            lambda paths: found(paths) == carried and quickly(paths),
            lambda: calibrate(network, tmp_path, of),
        )
    assert found(paths) == carried and quickly(paths), paths
    assert {(p.source, p.destination, p.rails) for p in paths} == {
        (a, b, (rail,)) for a, b in (("s1", "s2"), ("s2", "s1")) for rail in "ab"
    }
