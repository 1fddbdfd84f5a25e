"""A lab has the servers and networks of its plan, and its NICs keep the plan's rates."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.measurement import Transfer
from placewire.agent.measure.iperf3_clients import parse_result
from placewire.controller.errors import PlacewireError, UsageError
from placewire.controller.lab import (
    Lab,
    down,
    find_lab,
    lab_down,
    lab_up,
    refuse_what_a_lab_lacks,
    up,
)
from placewire.controller.lab.processes import describe, is_alive
from placewire.controller.lab.record import SysctlRecord, exclusive
from placewire.controller.lab.shape import shape_of
from placewire.controller.lab.switches import SEND_BUFFER_BYTES, send_buffer_bytes
from tests.agent.server_under_test import wait_for
from tests.controller.plans import plan, plan_document

NAME = f"lab{os.getpid()}"
SYSCTL = Path("/proc/sys/net/core/wmem_default")
RATE = 40e6


def document(servers: int = 2, rails: int = 1) -> dict[str, Any]:
    """rails: at most two."""
    full = plan_document(servers, name=NAME, rate=f"{RATE / 1e6:.0f}Mbit")
    for server in full["cluster"]["servers"]:
        server["nics"] = server["nics"][:rails]
    return full


# What is computed from the plan


def test_the_controller_gets_the_highest_free_management_address() -> None:
    full = document(3)
    full["cluster"]["servers"][2]["management"] = "10.9.0.254"
    assert shape_of(plan(full)).controller_address == "10.9.0.253/24"
    full["cluster"]["servers"][2]["management"] = "10.9.3.1"
    shape = shape_of(plan(full))
    assert shape.controller_address == "10.9.3.254/22"
    assert {server.management.split("/")[1] for server in shape.servers} == {"22"}


def test_a_management_network_that_overlaps_a_rail_is_refused() -> None:
    full = document()
    for k, server in enumerate(full["cluster"]["servers"], start=1):
        server["management"] = f"10.7.0.{100 + k}"
        server["nics"][0]["address"] = f"10.7.0.{k}/26"
    with pytest.raises(PlacewireError, match=r"10\.7\.0\.0/24 overlaps rail a"):
        shape_of(plan(full))


def test_a_plan_is_refused_where_its_lab_was_made_from_a_smaller_one() -> None:
    made = up._record_of(shape_of(plan(document(2, rails=2))))
    refuse_what_a_lab_lacks(plan(document(2, rails=2)), made)
    full = document(3, rails=2)
    for server in full["cluster"]["servers"]:
        server["nics"][0]["rate"] = "1Mbit"  # its line carries more than that
        server["nics"][1]["mtu"] = 9000
    full["cluster"]["servers"][0]["nics"][0]["rate"] = "1Gbit"
    with pytest.raises(PlacewireError) as raised:
        refuse_what_a_lab_lacks(plan(full), made)
    assert re.search(
        r"it has s1 nic0 at \d+ Mbit/s \(the plan: 1 Gbit/s\), "
        r"s1 nic1 with an MTU of 1500 \(the plan: 9000\), s2 nic1 with an MTU of 1500 .*, no s3$",
        raised.value.what,
    )
    assert f"controller lab down {NAME}" in str(raised.value.remedy)


def test_a_plan_is_refused_where_its_lab_has_other_rails_or_addresses() -> None:
    made = up._record_of(shape_of(plan(document(2, rails=2))))
    full = document(2, rails=2)
    first, second = full["cluster"]["servers"]
    first["nics"][0]["address"] = "10.7.0.11/24"
    for server in (first, second):
        server["nics"][1]["rail"] = "c"
    second["management"] = "10.9.0.12"
    with pytest.raises(PlacewireError) as raised:
        refuse_what_a_lab_lacks(plan(full), made)
    assert raised.value.what.endswith(
        "it has s1 nic0 with 10.7.0.1/24 (the plan: 10.7.0.11/24), s1 nic1 on rail b (the plan: c),"
        " s2 at 10.9.0.2 (the plan: 10.9.0.12), s2 nic1 on rail b (the plan: c)"
    )


def test_a_lab_of_a_release_that_recorded_neither_rail_nor_address_is_used() -> None:
    made = up._record_of(shape_of(plan(document(2))))
    former = made.model_dump(mode="json")
    for server in former["servers"]:
        for nic in server["nics"]:
            del nic["rail"], nic["address"]
    full = document(2)
    full["cluster"]["servers"][0]["nics"][0]["address"] = "10.7.0.11/24"
    refuse_what_a_lab_lacks(plan(full), type(made).model_validate(former))


def test_names_that_clash_with_the_lab_s_own_are_refused() -> None:
    full = document()
    full["cluster"]["servers"][0]["name"] = "rail-a"
    with pytest.raises(PlacewireError, match="two namespaces"):
        shape_of(plan(full))
    full = document()
    full["cluster"]["servers"][0]["nics"][0]["name"] = "mgmt0"
    with pytest.raises(PlacewireError, match="mgmt0"):
        shape_of(plan(full))


def test_a_machine_wide_value_is_put_back_only_where_it_is_still_ours(tmp_path: Path) -> None:
    file = tmp_path / "value"
    sysctl = SysctlRecord(path=str(file), before="1", ours="2")
    for now, then in (("2", "1"), ("3", "3")):
        file.write_text(f"{now}\n")
        down.put_back(sysctl)
        assert file.read_text().strip() == then


def test_a_pid_of_another_process_is_not_taken_for_ours() -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            ours = describe(sleeper.pid, ["sleep", "600"])
            deadline = time.monotonic() + 60
            while not is_alive(ours) and time.monotonic() < deadline:
                time.sleep(0.01)  # not executed yet
            assert is_alive(ours)
            assert not is_alive(ours.model_copy(update={"start_ticks": ours.start_ticks - 1}))
            assert not is_alive(ours.model_copy(update={"argv": ("sleep", "601")}))
        finally:
            sleeper.kill()


def test_a_lab_and_commands_in_it_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="run this as root"):
        lab_up(plan(document()))
    monkeypatch.setattr(os, "execvpe", lambda *command: None)
    there = Lab(up._record_of(shape_of(plan(document()))))
    with pytest.raises(UsageError, match="run this as root"):
        there.run_in_controller(["true"])


# The cluster that the lab makes


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with exclusive():  # no other lab goes up now
        before = SYSCTL.read_text()
    full = document(3, rails=2)
    for server in full["cluster"]["servers"]:
        server["nics"][1]["mtu"] = 9000
    made = lab_up(plan(full))
    try:
        with exclusive():
            assert SYSCTL.read_text() == before, "raised for a moment only"
        yield made
    finally:
        lab_down(NAME)


# iperf3's answer does not depend on the servers of the transfer.
ANY_TRANSFER = Transfer(
    source="", destination="", rail="", source_address="", destination_address="", tcp_port=5201,
    promised_bits_per_second=1.0,
)  # fmt: skip


def listens(lab: Lab, server: str, port: int) -> bool:
    argv = ["ss", "--no-header", "--listening", "--tcp", "--numeric", f"sport = :{port}"]
    command = lab.inside_server(server, argv)
    return bool(subprocess.run(command, capture_output=True, check=True).stdout)


def iperf3(
    lab: Lab, pairs: list[tuple[int, int]], rail: int = 0, at_most: float = 0.0
) -> list[float]:
    """Returns payload bits per second of each (source, destination), all at once, over 2 s after a
    first second. at_most: the rate that each sends at; 0: no limit."""
    servers, clients = [], []
    try:
        for port, (_, to) in enumerate(pairs, start=5201):
            argv = ["timeout", "60", "iperf3", "-s", "-1", "-J", "-p", str(port)]
            command = lab.inside_server(f"s{to}", argv)
            servers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for port, (_, to) in enumerate(pairs, start=5201):
            wait_for(partial(listens, lab, f"s{to}", port), f"iperf3 at port {port}")
        for port, (source, to) in enumerate(pairs, start=5201):
            argv = ["timeout", "60", "iperf3", "-c", f"10.7.{rail}.{to}", "-p", str(port)]
            argv += ["-t", "3", "-J", "--get-server-output", "-b", f"{at_most:.0f}"]
            command = lab.inside_server(f"s{source}", argv)
            clients.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        answers = [client.communicate(timeout=90)[0] for client in clients]
    finally:
        for process in [*servers, *clients]:
            process.kill()
            process.wait()
    results = [parse_result(ANY_TRANSFER, answer, b"", 2) for answer in answers]
    assert not [result.error for result in results if result.error]
    return [result.measured_bits_per_second for result in results]


def undisturbed(
    lab: Lab,
    pairs: list[tuple[int, int]],
    good: Callable[[list[float]], bool],
    rail: int = 0,
    at_most: float = 0.0,
) -> list[float]:
    """Measures up to five times, until the rates are good. A busy machine lowers rates; and raises
    them where a receiver was held up in the first second, and reads what waited in the others. So
    one good run shows what the network does."""
    for _ in range(5):
        rates = iperf3(lab, pairs, rail, at_most)
        if good(rates):
            break
    return rates


def within(least: float, most: float) -> Callable[[list[float]], bool]:
    """Whether each rate is between these parts of a NIC's."""
    return lambda rates: all(least * RATE < rate < most * RATE for rate in rates)


@pytest.mark.network
@pytest.mark.lab
def test_a_nic_sends_and_receives_at_its_rate_and_no_more(lab: Lab) -> None:
    alone = undisturbed(lab, [(1, 2)], within(0.92, 0.97))
    assert within(0.92, 0.97)(alone), f"{alone}: 1448 of 1514 bytes are payload"
    # Not so fast that a queue grows: one direction's acknowledgements would wait in it behind the
    # other's data, and one direction could starve the other. A NIC that shared its rate between
    # the directions would give half.
    both = undisturbed(lab, [(1, 2), (2, 1)], within(0.7, 0.9), at_most=0.8 * RATE)
    assert within(0.7, 0.9)(both), both


@pytest.mark.network
@pytest.mark.lab
def test_a_rail_of_large_frames_carries_more_at_the_same_rate(lab: Lab) -> None:
    alone = undisturbed(lab, [(1, 2)], within(0.97, 1.0), rail=1)
    assert within(0.97, 1.0)(alone), f"{alone}: 8948 of 9014 bytes are payload, 0.993"


@pytest.mark.network
@pytest.mark.lab
def test_two_senders_share_the_receiver_s_rate(lab: Lab) -> None:
    def share(rates: list[float]) -> bool:
        return within(0.85, 0.97)([sum(rates)]) and min(rates) > 0.2 * RATE

    rates = undisturbed(lab, [(1, 3), (2, 3)], share)
    assert share(rates), rates


# Sends packets with a type of service to an address.
SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
    ours.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[2]))
    for _ in range(int(sys.argv[3])):
        ours.sendto(b"x", (sys.argv[1], 9))
"""


@pytest.mark.network
@pytest.mark.lab
@pytest.mark.parametrize(("dscp", "first"), [(0, False), (8, False), (18, True), (46, True)])
def test_packets_that_are_marked_so_overtake_others(lab: Lab, dscp: int, first: bool) -> None:
    shape = shape_of(plan(document(3, rails=2)))
    (nic,) = (nic for nic in shape.servers[1].nics if nic.rail == "a")
    tc = ["tc", "-n", shape.rail_namespace("a"), "-s", "class", "show"]

    def passed() -> list[int]:
        """The packets of both classes towards the server, those that go first first."""
        shown = subprocess.check_output([*tc, "dev", f"port{nic.index}"], text=True)
        found = re.findall(r"class htb (2:[12]) .*\n Sent \d+ bytes (\d+) pkt", shown)
        return [int(packets) for _, packets in sorted(found)]

    before = passed()
    send = [sys.executable, "-c", SEND, "10.7.0.2", str(dscp << 2), "50"]
    subprocess.run(lab.inside_server("s1", send), check=True, timeout=60)
    wait_for(lambda: sum(passed()) >= sum(before) + 50, "50 packets")
    more = [after - then for after, then in zip(passed(), before, strict=True)]
    assert more[0 if first else 1] >= 50 > more[1 if first else 0]


@pytest.mark.network
@pytest.mark.lab
def test_a_server_has_its_addresses_where_a_real_one_has_them(lab: Lab) -> None:
    argv = lab.inside_server("s2", ["ip", "-json", "address"])
    found = {
        link["ifname"]: [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"]]
        for link in json.loads(subprocess.check_output(argv))
    }
    assert found["nic0"] == ["10.7.0.2/24"]
    assert found["mgmt0"] == ["10.9.0.2/24"]
    assert found["lo"] == ["127.0.0.1/8"], "up, and no IPv6"
    assert not [name for name in found if "settle" in name]


@pytest.mark.network
@pytest.mark.lab
def test_the_switches_send_through_a_large_buffer(lab: Lab) -> None:
    for server in lab.record.servers:
        assert send_buffer_bytes(server.namespace) >= SEND_BUFFER_BYTES


LISTEN = """
import asyncio, sys
from pathlib import Path
from placewire.agent.contract.messages import Observation, Observe
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority

async def main():
    authority = Authority.load(Path(sys.argv[1]) / "ca")
    async with Agents.listening("0.0.0.0", 7440, authority) as agents:
        await agents.wait_for(sys.argv[2:], timeout_seconds=60)
        found = await agents.ask_all(dict.fromkeys(sys.argv[2:], Observe()), Observation, 60)
    print(*(nic.name + nic.addresses[0] for o in found.values() for nic in o.state.nics
            if nic.name == "nic0"))

asyncio.run(main())
"""


@pytest.mark.network
@pytest.mark.lab
def test_its_agents_dial_the_controller_and_see_their_nics(lab: Lab) -> None:
    names = [server.name for server in lab.record.servers]
    state = str(lab.state_directory)
    argv = lab.inside_controller([sys.executable, "-c", LISTEN, state, *names])
    said = subprocess.check_output(argv, env=lab.environment, timeout=150, text=True)
    assert said.split() == ["nic010.7.0.1/24", "nic010.7.0.2/24", "nic010.7.0.3/24"]


@pytest.mark.network
@pytest.mark.lab
def test_a_second_lab_of_that_name_is_refused_with_the_way_to_remove_it(lab: Lab) -> None:
    with pytest.raises(PlacewireError, match=f"controller lab down {NAME}"):
        lab_up(plan(document(3)))
    assert find_lab(NAME) == lab
