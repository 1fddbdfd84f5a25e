"""One pair's rate changes while all pairs send: the other transfers notice nothing."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.state import DesiredState
from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.states import desired_state
from tests.measured import until

pytestmark = [pytest.mark.network, pytest.mark.slow]

SECONDS = 7
# (destination, bit/s of paced UDP; None: TCP as fast as its queue lets it). Queues carry 10 Mbit/s
# to .2 and 30 to .3.
CHANGED = "10.7.0.2"
TRANSFERS: tuple[tuple[str, int | None], ...] = (
    (CHANGED, None), ("10.7.0.3", 3_000_000), ("10.7.1.2", 2_000_000), ("10.7.1.3", None),
)  # fmt: skip
# All queues of the userspace datapath share one send buffer of 208 kB here: what the two TCP
# transfers keep in it must leave room for the others' packets.
WINDOW_BYTES = 32 * 1024


def with_rate(generation: int, bits_per_second: int) -> DesiredState:
    """A state in which only the rate of nic0 to .2 differs."""
    state = desired_state(generation)
    rates = {"min_bits_per_second": bits_per_second, "max_bits_per_second": bits_per_second}
    queues = tuple(
        queue.model_copy(update=rates) if queue.key == "nic0 queue 2" else queue
        for queue in state.queues
    )
    return state.model_copy(update={"queues": queues})


def stage(server: ServerUnderTest, state: DesiredState) -> list[str]:
    """Stages the state, and returns the keys of what changed."""
    report = server.inside(keeping.stage, server.config, state)
    assert report.succeeded, report.refusals
    server.inside(keeping.commit, server.config, state.generation)
    return [change.key for change in report.changes]


def know_each_other(server: ServerUnderTest) -> None:
    """Makes ARP entries beforehand: ARP is no IP, and rightly goes through queue 0."""
    for rail in (0, 1):
        ours = server.sh(f"cat /sys/class/net/pw-nic{rail}/address").strip()
        theirs = server.sh(f"cat /sys/class/net/nic{rail}/address", peer=True).strip()
        for host in (2, 3):
            server.sh(f"ip neigh replace 10.7.{rail}.{host} lladdr {theirs} dev pw-nic{rail} "
                      "nud permanent")  # fmt: skip
        server.sh(f"ip neigh replace 10.7.{rail}.1 lladdr {ours} dev nic{rail} nud permanent",
                  peer=True)  # fmt: skip


def start(server: ServerUnderTest, number: int) -> tuple[subprocess.Popen[bytes], Path]:
    destination, rate = TRANSFERS[number]
    port, said = str(42100 + number), server.directory / f"transfer{number}.json"
    server.popen(
        "iperf3", "-s", "-1", "-B", destination, "-p", port, peer=True, stdout=subprocess.DEVNULL
    )
    wait_for(lambda: f":{port} " in server.sh("ss -ltn", peer=True), "iperf3")
    kind = ("-u", "-l", "1400", "-b", str(rate)) if rate else ("-w", str(WINDOW_BYTES))
    with said.open("wb") as file:
        client = server.popen(
            "iperf3", "-J", "-c", destination, "-p", port, "-t", str(SECONDS), *kind, stdout=file
        )
    return client, said


def through_queue_0(server: ServerUnderTest) -> list[int]:
    """How many packets went through queue 0, by NIC."""
    found = []
    for nic in ("nic0", "nic1"):
        (shown,) = [text for text in server.sh(f"tc -s class show dev {nic}").split("class htb ")
                    if text.startswith("1:1 ")]  # fmt: skip
        sent = re.search(r"Sent \d+ bytes (\d+) pkt", shown)
        assert sent is not None
        found.append(int(sent[1]))
    return found


def resets(server: ServerUnderTest) -> list[str]:
    """Resets of established connections, and resets sent, on both sides."""
    names = "TcpEstabResets TcpOutRsts"
    shown = [server.sh(f"nstat -asz {names}", peer=peer) for peer in (False, True)]
    return [line for text in shown for line in text.splitlines() if line.startswith("Tcp")]


def test_nothing_is_lost_while_one_rate_changes(server: ServerUnderTest) -> None:
    """A receiver or a switch that gets no processor for a moment loses packets, too, and what it
    delays may end too early: then it is looked again. What a change loses is lost each time."""
    stage(server, desired_state(1))
    know_each_other(server)
    generations = itertools.count(2)
    assert until(lambda wrong: not wrong, lambda: what_goes_wrong(server, generations)) == []


def what_goes_wrong(server: ServerUnderTest, generations: Iterator[int]) -> list[str]:
    """Changes one rate twice while all pairs send, and says what they noticed."""
    running = [start(server, number) for number in range(len(TRANSFERS))]
    time.sleep(1)
    before, resets_before = through_queue_0(server), resets(server)
    for rate in (6_000_000, 18_000_000):
        assert stage(server, with_rate(next(generations), rate)) == ["nic0 queue 2"]
        assert f"rate {rate // 1_000_000}Mbit" in server.sh("tc class show dev nic0")
        time.sleep(1)
    wrong = []
    if any(client.poll() is not None for client, _ in running):
        wrong.append("they did not run all the while")
    if (after := through_queue_0(server)) != before:
        wrong.append(f"packets through queue 0: {before}, then {after}")
    if (resets_after := resets(server)) != resets_before:
        wrong.append(f"resets: {resets_before}, then {resets_after}")
    for (destination, udp_rate), (client, said) in zip(TRANSFERS, running, strict=True):
        client.wait(60)
        report: dict[str, Any] = json.loads(said.read_text())
        if "error" in report:
            wrong.append(f"{destination}: {report['error']}")
        elif udp_rate:
            total = report["end"]["sum"]
            if not total["lost_packets"] == 0 < total["packets"]:
                wrong.append(f"{destination}: {total}")
        elif report["end"]["sum_received"]["bytes"] <= 500_000:
            wrong.append(f"{destination}: {report['end']['sum_received']}")
    return wrong
