"""Item 4: the rates that four servers with two NICs each reach at once, against those promised.

Rates are payload. All transfers of a row run at the same time, each as fast as it can.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.measured import CACHE
from benchmarks.job.replays import HOST, LAB, lab_of, plan_document
from benchmarks.report import ROOT
from benchmarks.table import Table
from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.plan.plan_file import parse_plan
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.operator_graph import build_graph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Message, Placement, save_placement
from tests.placements import placement_of

SERVERS, RAILS = 4, 2
# At this rate and MTU two cores carry all NICs of this lab in both directions; at MTU 1500 they
# carry hardly half of that.
NIC_RATE, MTU_BYTES = "16Mbit", 9000
SECONDS = 4
# The parts of its NIC that a server promises to the next server, to the one after, and to the
# third. The sum is the same at every receiver.
UNEQUAL = (3, 2, 1)
# The part of a NIC that is promised where the rest can be lent and borrowed.
FLOOR = 0.5
Pair = tuple[str, str, str]  # source, destination, rail


@dataclass(frozen=True)
class Round:
    """Transfers measured at once. only: those that run, or None for all. neighbour: whether eight
    greedy flows run out of s1's NIC on rail a to a host that is not part of the job."""

    name: str
    only: tuple[Pair, ...] | None = None
    neighbour: bool = False


@dataclass(frozen=True)
class Measured:
    """neighbour_bits_per_second: None where no neighbour ran."""

    round: Round
    links: tuple[LinkMeasurement, ...]
    neighbour_bits_per_second: float | None


INCAST = tuple((f"s{k}", "s1", rail) for k in (2, 3, 4) for rail in "ab")
ALONE = (("s1", "s2", "a"),)
NETWORKS: Mapping[SharingName, tuple[float, tuple[Round, ...]]] = {
    "strict": (1.0, (Round("all 24 queues, both directions"),)),
    "guarantee": (
        FLOOR,
        (
            Round("all 24 queues, both directions"),
            Round("incast: three servers to one, both rails", INCAST),
            Round("one pair alone", ALONE),
        ),
    ),
    "job": (
        FLOOR,
        (
            Round("the job alone", ALONE),
            Round("a neighbour's 8 flows alone", (), neighbour=True),
            Round("both", ALONE, neighbour=True),
        ),
    ),
}


def tables(_: Path | None) -> Iterable[Table]:
    found = measured()
    yield _summary(found)
    for sharing in ("strict", "guarantee"):
        yield _matrix(sharing, found[sharing][0])
    yield _neighbour(found["job"])


def measured() -> dict[SharingName, list[Measured]]:
    """The rounds of each sharing. One lab holds all networks: each is made and then restored."""
    requests = {sharing: _request(sharing) for sharing in NETWORKS}
    with lab_of(_plan(host=True)) as lab:
        done = subprocess.run(
            lab.inside_controller([sys.executable, "-m", "benchmarks.agent.in_lab", LAB]),
            input="\n".join(json.dumps(request) for request in requests.values()) + "\n",
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env=lab.environment, check=True,
        )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        sharing: [
            Measured(one, tuple(LinkMeasurement.model_validate(link) for link in got["links"]),
                     got["neighbour"])
            for one, got in zip(NETWORKS[sharing][1], answer, strict=True)
        ]
        for sharing, answer in zip(requests, answers, strict=True)
    }  # fmt: skip


def _plan(*, host: bool = False) -> dict[str, Any]:
    return plan_document(SERVERS, RAILS, host=host, rate=NIC_RATE, mtu=MTU_BYTES)


def _request(sharing: SharingName) -> dict[str, Any]:
    part, rounds = NETWORKS[sharing]
    document = _plan()
    document["network"] = {
        "sharing": sharing,
        "floor": part if sharing == "job" else 1,
        "verify": {"seconds": f"{SECONDS}s"},
    }
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / f"bandwidth-{sharing}.placement.json"
    save_placement(
        _placement(sharing, part, parse_plan(document, "lab", ROOT).payload_cluster), file
    )
    hosts = [f"10.7.0.{SERVERS + 1}"]
    neighbour = {"host": HOST, "server": "s1", "addresses": hosts, "directions": ["out"]}
    return {
        "plan": document,
        "placement": str(file),
        "rounds": [
            {"only": one.only, "neighbour": neighbour if one.neighbour else None} for one in rounds
        ],
    }


def _placement(sharing: SharingName, part: float, cluster: Cluster) -> Placement:
    """A placement without operators: only rates, or under `job` only messages."""
    names = [server.name for server in cluster.servers]
    rates, messages = [], []
    for at, server in enumerate(cluster.servers):
        for nic in server.nics:
            for step, weight in enumerate(UNEQUAL, start=1):
                to = names[(at + step) % len(names)]
                rate = nic.rate_bits_per_second * part * weight / sum(UNEQUAL)
                rates.append((server.name, to, nic.rail, rate))
                messages.append(
                    Message(
                        producer="none", source=f"{server.name}/0", destination=f"{to}/0",
                        bytes=1, send_order=0, rails={nic.rail: 1.0},
                    )
                )  # fmt: skip
    made = placement_of(build_graph([], []), cluster, {})
    return made.model_copy(update={
        "sharing": sharing, "floor": part if sharing == "job" else 1.0,
        "rates_bits_per_second": () if sharing == "job" else tuple(rates),
        "messages": tuple(messages),
    })  # fmt: skip


def _summary(found: Mapping[SharingName, Sequence[Measured]]) -> Table:
    rows = [
        (f"{sharing}: {one.round.name}", str(len(one.links)), *_extremes(one.links),
         str(sum(link.error is not None for link in one.links)))
        for sharing in ("strict", "guarantee")
        for one in found[sharing]
    ]  # fmt: skip
    return Table(
        f"4. {SERVERS} servers, {RAILS} NICs of {NIC_RATE}/s, MTU {MTU_BYTES}: got of promised",
        ("sharing, and what runs at once", "queues", "least", "most", "most, of the cap", "errors"),
        rows,
        notes=(
            f"Payload at the receiver over {SECONDS} s, every transfer as fast as it can. strict: "
            "within 5 % of what was promised; guarantee: at least 95 %, and no more than the cap, "
            f"which is what receivers have to spare. Promised: {FLOOR:.0%} of each NIC under "
            f"guarantee, all of it under strict, {', '.join(map(str, UNEQUAL))} parts to a "
            "server's next three.",
        ),
    )


def _extremes(links: Sequence[LinkMeasurement]) -> tuple[str, str, str]:
    """The least and the most that links got of their promise, and the most of their cap."""
    of_promise = [link.measured_bits_per_second / link.promised_bits_per_second for link in links]
    of_cap = [link.measured_bits_per_second / link.at_most_bits_per_second for link in links]
    return f"{min(of_promise):.1%}", f"{max(of_promise):.1%}", f"{max(of_cap):.1%}"


def _matrix(sharing: SharingName, one: Measured) -> Table:
    names = [f"s{k + 1}" for k in range(SERVERS)]
    cells = {
        (link.source, link.rail, link.destination): f"{_mega(link.measured_bits_per_second)} / "
        f"{_mega(link.promised_bits_per_second)}"
        for link in one.links
    }
    return Table(
        f"4. {sharing}, {one.round.name}: Mbit/s measured / promised",
        ("from, rail", *(f"to {name}" for name in names)),
        [
            (f"{source}, {rail}", *(cells.get((source, rail, to), "") for to in names))
            for source in names
            for rail in "ab"
        ],
    )


def _neighbour(found: Sequence[Measured]) -> Table:
    rows = []
    for one in found:
        got = [link.measured_bits_per_second for link in one.links]
        beside = one.neighbour_bits_per_second
        rows.append((
            one.round.name, _mega(sum(got)) if got else "",
            "" if beside is None else _mega(beside), _mega(sum(got) + (beside or 0.0)),
        ))  # fmt: skip
    floor = FLOOR * parse_plan(_plan(), "lab", ROOT).payload_cluster.nic_rates[0, 0]
    return Table(
        f"4. job: one NIC of {NIC_RATE}/s, of which the job's floor is {FLOOR:.0%}",
        ("what sends through s1's NIC", "the job, Mbit/s", "the neighbour", "together"),
        rows,
        notes=(f"The floor as payload: {_mega(floor)} Mbit/s.",),
    )


def _mega(bits_per_second: float) -> str:
    return f"{bits_per_second / 1e6:.2f}"
