"""The real daemon on a real Open vSwitch and kernel, while others change things or a restart loses
them."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.messages import Commit, ReadBack, Stage
from placewire.agent.reconcile.next_look import PERIOD_SECONDS
from tests.agent.agent_process import end, start_agent
from tests.agent.controller_double import ControllerDouble, write_certificates
from tests.agent.server_under_test import ServerUnderTest, start_database, start_vswitchd, wait_for
from tests.agent.states import desired_state
from tests.prometheus import parse

pytestmark = pytest.mark.network

# Far below the period, which begins anew with each look: only an event can have told.
SOON_SECONDS = PERIOD_SECONDS / 2


@pytest.fixture
def controller(server: ServerUnderTest) -> Iterator[ControllerDouble]:
    write_certificates(server.directory)
    with ControllerDouble(server) as running:
        yield running


def in_force(server: ServerUnderTest, controller: ControllerDouble, drift: str = "heal") -> None:
    start_agent(server)
    controller.wait_for_agent()
    report = controller.ask(Stage(desired=desired_state(drift=drift), lease_seconds=60))["result"]
    assert report["succeeded"], report
    controller.ask(Commit(generation=1, lease_seconds=None))


def verified(controller: ControllerDouble) -> Any:
    return controller.ask(ReadBack(generation=1))["result"]


def healed(controller: ControllerDouble, heals: int) -> Any:
    """Waits for that many heals, and until all is as decided."""

    def look() -> Any:
        found = verified(controller)
        if found is None:
            return None  # It cannot be read just now.
        whole = not found["deviations"] and not found["problems"]
        return found if whole and found["drift"]["heals"] >= heals else None

    return wait_for(look, f"heal {heals}", SOON_SECONDS)


def ofctl(server: ServerUnderTest, command: str, bridge: str, *words: str) -> str:
    path = f"unix:{server.directory}/{bridge}.mgmt"
    return server.sh(f"ovs-ofctl {command} {path} {' '.join(words)}")


def flows(server: ServerUnderTest) -> list[str]:
    dumps = (ofctl(server, "--no-stats dump-flows", f"pw-nic{n}") for n in (0, 1))
    return sorted(line.strip() for dump in dumps for line in dump.splitlines())


def audited(server: ServerUnderTest, event: str) -> list[str]:
    text = (Path(server.config.state_dir) / "audit.jsonl").read_text()
    lines = text[: text.rfind("\n") + 1].splitlines()  # The agent may just be writing the last one.
    records = [record for line in lines if (record := json.loads(line))["event"] == event]
    return [record["change"]["key"] for record in records if "change" in record]


def metrics(server: ServerUnderTest) -> str:
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(f"{server.config.state_dir}/metrics.sock")
        asked.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = b"".join(iter(lambda: asked.recv(65_536), b""))
    return answer.split(b"\r\n\r\n", 1)[1].decode()


def sent_bytes(server: ServerUnderTest) -> dict[str, float]:
    """Bytes sent, by NIC and purpose of the queue."""
    found = {}
    for (name, labels), value in parse(metrics(server)).items():
        if name == "placewire_queue_transmit_bytes_total":
            of = dict(labels)
            found[f"{of['nic']} {of['purpose']}"] = value
    return found


def send_datagrams(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(20):
            sender.sendto(bytes(1000), (address, 9))
            time.sleep(0.01)


def process(server: ServerUnderTest, name: str) -> Any:
    return next(p for p in server.processes if p.args[4] == name and p.poll() is None)  # type: ignore[index]


DELETE_FLOW = "del-flows --strict", "pw-nic0", '"priority=20480,in_port=LOCAL,ip,nw_dst=10.7.0.2"'
SLOWER_CLASS = "tc class change dev nic0 parent 1:fffe classid 1:3 htb rate 1mbit ceil 1mbit"
DELETE_RULE = "ip rule del priority 18001"


def test_what_others_change_is_put_back(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    in_force(server, controller)
    before, there = server.snapshot(), flows(server)
    ofctl(server, *DELETE_FLOW)
    healed(controller, 1)
    assert flows(server) == there
    server.sh(DELETE_RULE)
    healed(controller, 2)
    server.sh(SLOWER_CLASS)
    healed(controller, 3)
    server.sh("ip route flush table 8001; ip address del 10.7.1.1/24 dev pw-nic1")
    healed(controller, 4)
    queue = server.vsctl("--bare --columns=_uuid find queue external_ids:placewire-nic=nic1 "
                         "external_ids:placewire-queue=2").strip()  # fmt: skip
    server.vsctl(f"set queue {queue} other_config:max-rate=1000000")
    found = healed(controller, 5)
    # A look may fall between the two changes of the fourth edit, which then are two drifts.
    assert found["drift"]["drifts"] in (5, 6) and not found["drift"]["notes"]
    after = server.snapshot()
    assert {key for key in before if before[key] != after[key]} <= {"filters"}
    assert set(audited(server, "heal")) >= {"pw-nic0 to 10.7.0.2", "18001 from 10.7.1.1/32"}
    series = parse(metrics(server))
    heals = series["placewire_heals_total", frozenset({("server", server.config.server)})]
    assert heals == found["drift"]["heals"]
    server.inside(send_datagrams, "10.7.1.3")
    wait_for(lambda: sent_bytes(server)["nic1 to s3"] > 5 * 1000, "what was sent")
    assert len(sent_bytes(server)) == 8 and not sent_bytes(server)["nic1 to s2"]


def test_rows_that_others_leave_without_a_port_go(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    """Open vSwitch keeps such rows, and ours are written anew."""
    in_force(server, controller)
    before, there = len(rows(server)), rows(server)
    for heals, others in enumerate(("clear port nic0 qos", "del-br pw-nic1"), 1):
        server.vsctl(others)
        healed(controller, heals)
        assert len(rows(server)) == before
    assert not rows(server) & there


def rows(server: ServerUnderTest) -> set[str]:
    """Our rows of QoS and Queue."""
    find = "--bare --columns=_uuid find {} external_ids:placewire=test-plan"
    return {u for table in ("qos", "queue") for u in server.vsctl(find.format(table)).split()}


def test_what_others_change_is_only_told_where_the_plan_says_so(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    in_force(server, controller, "report")
    ofctl(server, *DELETE_FLOW)
    server.sh(f"{SLOWER_CLASS}; {DELETE_RULE}")
    edited, there = server.snapshot(), flows(server)
    found = wait_for(
        lambda: (f := verified(controller))["drift"]["notes"] and f, "the report", SOON_SECONDS
    )
    assert found["drift"]["policy"] == "report" and not found["drift"]["heals"]
    assert "drift: report" in found["drift"]["notes"][0]
    keys = {change["key"] for change in found["deviations"]}
    assert keys >= {"pw-nic0 to 10.7.0.2", "18001 from 10.7.1.1/32", "nic0 queue 2"}
    assert any("nic0 queue 2: rate" in problem for problem in found["problems"])
    # A look may fall between these changes; then the next one notes the rest.
    wait_for(lambda: set(audited(server, "drift")) >= keys - {"nic0"}, "the audit", SOON_SECONDS)
    assert server.snapshot() == edited and flows(server) == there


def test_a_foreign_flow_in_the_place_of_ours_is_named_and_left(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    in_force(server, controller)
    there = flows(server)
    ofctl(server, "add-flow", "pw-nic0",
          '"cookie=7,priority=20480,in_port=LOCAL,ip,nw_dst=10.7.0.2,actions=NORMAL"')  # fmt: skip
    taken = flows(server)
    told = wait_for(lambda: verified(controller)["drift"]["notes"], "the note", SOON_SECONDS)
    assert "cookie=0x7" in told[0] and "not ours" in told[0]
    assert flows(server) == taken != there
    ofctl(server, "del-flows", "pw-nic0", "cookie=7/-1")
    healed(controller, 1)
    assert flows(server) == there


def test_a_killed_switch_gets_back_what_went_with_it(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    in_force(server, controller)
    before, there = server.snapshot(), flows(server)
    classes = server.sh("tc class show dev nic0 | sort")
    for heals in (1, 2):
        end(process(server, "ovs-vswitchd"), signal.SIGKILL)
        start_vswitchd(server)
        healed(controller, heals)
        assert flows(server) == there
    after = server.snapshot()
    for part in ("rules", "rows", "qos", "sysctls", "routes"):
        assert after[part] == before[part], part
    assert server.sh("tc class show dev nic0 | sort") == classes
    lost = set(audited(server, "heal"))
    assert lost >= {f"pw-nic{nic} to 10.7.{nic}.{host}" for nic in (0, 1) for host in (2, 3)}
    assert not any("queue" in key or "from" in key for key in lost), "what it left is not touched"


def test_a_database_that_restarts_is_followed_again(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    in_force(server, controller)
    before, there = server.snapshot(), flows(server)
    end(process(server, "ovsdb-server"), signal.SIGKILL)
    (server.directory / "db.sock").unlink(missing_ok=True)
    start_database(server)
    wait_for(lambda: "result" in controller.ask(ReadBack(generation=1)), "an answer")
    healed(controller, 0)
    assert server.snapshot() == before and flows(server) == there
    queue = server.vsctl("--bare --columns=_uuid find queue external_ids:placewire-nic=nic1 "
                         "external_ids:placewire-queue=2").strip()  # fmt: skip
    server.vsctl(f"set queue {queue} external_ids:placewire-purpose=spoiled")
    healed(controller, 1)
