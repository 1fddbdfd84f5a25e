"""A rail that fails under a script: a short gap delays it, a long one ends it within a bound."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.job.namespaces import Namespaces, run
from placewire.job.contract.specification import Failed, RailInterface, ScriptSpec, parse_rank_event
from placewire.job.errors import JobError
from placewire.job.script import stalled_rails as module
from placewire.job.script.stalled_rails import StalledRails, Unanswered, parse_unanswered
from tests.paths import ROOT

SERVERS, RAILS = ("s1", "s2"), ("a", "b")
LOSS_SECONDS, LONGEST_SECONDS = 6.0, 120.0
# Each of these takes 0.3 s, so that a NIC which goes away does so in the middle of one.
SENDS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1_000_000)
until = time.monotonic() + 120
for step in range(100_000):
    x.fill_(1)
    dist.all_reduce(x)
    assert (x == 2).all()
    print("step", step, flush=True)
    end = torch.tensor([float(os.path.exists(sys.argv[1]) or time.monotonic() > until)])
    dist.all_reduce(end)
    if end.item() == 2:
        break
dist.destroy_process_group()
"""
SS = """\
ESTAB 0 4344 10.77.0.1:41340 10.77.0.2:29511 timer:(on,1.2sec,3) ino:101 sk:10 cgroup:/ <->
ESTAB 0 4344 10.77.0.1:41341 10.77.0.2:29512 timer:(on,200ms,0) ino:102 sk:11 <->
ESTAB 0 90000 10.77.1.1:41342 10.77.1.2:29513 timer:(persist,51sec,2) uid:1000 ino:103 sk:12 <->
ESTAB 0 0 10.77.1.1:41343 10.77.1.2:29514 timer:(keepalive,119min,0) ino:104 sk:13 <->
ESTAB 0 4344 [::ffff:10.77.0.1]%nica:41345 [::ffff:10.77.0.3]:29516 timer:(on,9sec,1) ino:106 <->
ESTAB 0 0 10.77.1.1:41344 10.77.1.2:29515 ino:105 sk:14 <->
"""


def test_connections_without_an_answer_are_told_from_others() -> None:
    assert parse_unanswered(SS) == {
        Unanswered("10.77.0.1", "10.77.0.2", 101): 3, Unanswered("10.77.1.1", "10.77.1.2", 103): 2,
        Unanswered("10.77.0.1", "10.77.0.3", 106): 1,
    }  # fmt: skip


RAIL = RailInterface(rail="a", interface="nica", address="10.77.0.1", peers=("10.77.0.2",))


def test_who_is_not_on_the_rail_ends_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a store of files, or a laptop that reads metrics."""
    monkeypatch.setattr(module, "_inodes", lambda _: {101, 103, 106})
    done = subprocess.CompletedProcess([], 0, SS.replace("10.77.0.2", "10.77.0.9"), "")
    monkeypatch.setattr("placewire.job.script.stalled_rails.subprocess.run", lambda *_, **__: done)
    rails = StalledRails([RAIL], 1.0)
    for second in range(100):
        rails.require_none(float(second))
    with pytest.raises(JobError, match=r"to 10\.77\.0\.2 for 3 s"):
        for second in range(100, 110):
            done.stdout = SS if second < 102 else SS.replace("1.2sec,3", "2.4sec,4")
            rails.require_none(float(second))


@pytest.mark.parametrize(
    "error",
    [
        OSError(2, "none"),
        subprocess.TimeoutExpired("ss", 1),
        subprocess.CalledProcessError(1, "ss"),
    ],
)
def test_a_look_that_fails_ends_no_script(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("placewire.job.script.stalled_rails.subprocess.run", fails)
    rails = StalledRails([RAIL], 1.0)
    for second in range(10):
        rails.require_none(float(second))


def test_only_what_stays_unanswered_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    rails = StalledRails([RAIL], 20.0)
    one, now = Unanswered("10.77.0.1", "10.77.0.2", 1), dict[Unanswered, int]()
    monkeypatch.setattr(rails, "_unanswered", now.copy)
    for second in range(0, 102, 2):  # It is answered every ten seconds.
        now.clear()
        now.update({one: 1} if second % 10 else {})
        rails.require_none(float(second))
    for second in range(102, 202, 2):  # It is answered between two looks, and asked again.
        now[one] = 3 - second % 6 // 2
        rails.require_none(float(second))
    for second in range(202, 226, 2):
        now[one] = 3 if second < 224 else 4
        rails.require_none(float(second))
    with pytest.raises(JobError, match=r"rail a .* from nica to 10\.77\.0\.2 for 26 s"):
        rails.require_none(226.0)


class Rail:
    """A rail whose kernel sends again what is unanswered, and waits twice as long each time."""

    def __init__(self, first_seconds: float, longest_seconds: float = 120.0) -> None:
        self.resends_seconds, pause = [first_seconds], first_seconds
        while self.resends_seconds[-1] < 1000:
            pause = min(2 * pause, longest_seconds)
            self.resends_seconds.append(self.resends_seconds[-1] + pause)

    def lines(self, now_seconds: float, back_seconds: float) -> str:
        """What ss prints so long after the last answer; back_seconds: when the rail works again."""
        if any(back_seconds <= sent <= now_seconds for sent in self.resends_seconds):
            return "ESTAB 0 0 10.77.0.1:41340 10.77.0.2:29511 ino:101 sk:10 <->\n"
        times = sum(sent <= now_seconds for sent in self.resends_seconds)
        return f"ESTAB 0 9 10.77.0.1:41340 10.77.0.2:29511 timer:(on,1sec,{times}) ino:101 <->\n"


def given_up_after(
    patch: pytest.MonkeyPatch, rail: Rail, *, back: float, first_look: float
) -> float | None:
    """Returns how many seconds after its last answer the rail is given up, if it is."""
    patch.setattr(module, "_inodes", lambda _: {101})
    done = subprocess.CompletedProcess([], 0, "", "")
    patch.setattr("placewire.job.script.stalled_rails.subprocess.run", lambda *_, **__: done)
    rails, now = StalledRails([RAIL], 20.0), first_look
    while now < 1000:
        done.stdout = rail.lines(now, back)
        try:
            rails.require_none(now)
        except JobError:
            return now
        now += 2.1
    return None


LOOKS = [0.0, 0.3, 0.9, 1.5, 2.0]


@pytest.mark.parametrize("first_seconds", [0.2, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("back", [1.0, 6.5, 13.0, 19.9])
def test_a_rail_that_is_back_within_the_bound_ends_no_script(
    monkeypatch: pytest.MonkeyPatch, first_seconds: float, back: float
) -> None:
    """Though the kernel tries it again only after the bound: 13 s after 25.4."""
    for first_look in LOOKS:
        rail = Rail(first_seconds)
        assert given_up_after(monkeypatch, rail, back=back, first_look=first_look) is None


@pytest.mark.parametrize(
    ("first_seconds", "least", "most"),
    # Once in vain after 25.4, 31, and 45 s.
    [(0.2, 25.4, 30.0), (1.0, 31.0, 35.5), (3.0, 45.0, 49.5)],
)
def test_a_rail_that_is_gone_is_given_up_within_a_minute(
    monkeypatch: pytest.MonkeyPatch, first_seconds: float, least: float, most: float
) -> None:
    for first_look in LOOKS:
        rail = Rail(first_seconds)
        after = given_up_after(monkeypatch, rail, back=math.inf, first_look=first_look)
        assert after is not None and least <= after <= most


def test_a_rail_that_is_never_tried_again_is_given_up_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rail = Rail(0.2, longest_seconds=12.0)
    rail.resends_seconds = [one for one in rail.resends_seconds if one < 13]
    after = given_up_after(monkeypatch, rail, back=math.inf, first_look=0.0)
    assert after is not None and 140 <= after <= 145


def test_a_server_that_no_rail_reaches_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is down: no cable is to blame. One rail alone says nothing of the server."""
    interfaces = [
        RailInterface(
            rail=rail, interface=f"nic{rail}", address=f"10.77.{number}.1",
            peers=(f"10.77.{number}.2", f"10.77.{number}.3"),
        )
        for number, rail in enumerate(RAILS)
    ]  # fmt: skip

    def said_of(*stalled: tuple[str, str]) -> str:
        rails, tried = StalledRails(interfaces, 20.0), 0
        found = {Unanswered(own, peer, k): 6 for k, (own, peer) in enumerate(stalled)}
        monkeypatch.setattr(rails, "_unanswered", lambda: {o: n + tried for o, n in found.items()})
        with pytest.raises(JobError) as lost:
            for second in range(0, 100, 2):
                tried = int(second > 24)
                rails.require_none(float(second))
        return f"{lost.value.what}; {lost.value.remedy}"

    both = said_of(("10.77.0.1", "10.77.0.3"), ("10.77.1.1", "10.77.1.3"))
    assert both.startswith("nothing has arrived at 10.77.0.3 on any rail for 28 s (its other ")
    assert "addresses: 10.77.1.3): the server may be down" in both and "cables" not in both
    for stalled in (
        [("10.77.1.1", "10.77.1.3")],
        [("10.77.1.1", "10.77.1.3"), ("10.77.1.1", "10.77.1.2")],
        [("10.77.1.1", "10.77.1.3"), ("10.77.0.1", "10.77.0.2")],
    ):
        assert said_of(*stalled).startswith("rail b has carried nothing from nicb to 10.77.1.3 ")


def test_a_supervisor_that_slept_looks_again_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rails = StalledRails([RAIL], 20.0)
    one = Unanswered("10.77.0.1", "10.77.0.2", 1)
    looks = iter([{one: 1}, {one: 2}, {one: 3}])
    monkeypatch.setattr(rails, "_unanswered", lambda: next(looks))
    for now in (0.0, 500.0, 502.0):
        rails.require_none(now)


@contextmanager
def running(
    folder: Path, network: Namespaces, *, parts: tuple[float, ...]
) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts the script on both servers, and waits until it sends."""
    (folder / "script.py").write_text(SENDS)
    started = []
    for rank, server in enumerate(SERVERS):
        peer = SERVERS[1 - rank]
        spec = ScriptSpec(
            rank=rank, world_size=2, device=f"{server}/0", rail_pattern=(0, 1, 1, 0),
            master_address=network.address("s1", "a"), master_tcp_port=29512, rail_parts=parts,
            rail_interfaces=tuple(
                RailInterface(
                    rail=rail, interface=network.nic(rail), address=network.address(server, rail),
                    peers=(network.address(peer, rail),),
                )
                for rail in RAILS
            ),
            script=str(folder / "script.py"), arguments=(str(folder / "end"),),
            loss_seconds=LOSS_SECONDS,
        )  # fmt: skip
        file = folder / f"{server}.json"
        file.write_text(spec.model_dump_json())
        started.append(subprocess.Popen(
            [*network.prefix(server), sys.executable, "-m", "placewire.job", str(file)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
        ))  # fmt: skip
    try:
        said = started[0].stdout
        assert said is not None
        assert any("step 3" in line for line in said)
        yield started
    finally:
        for one in started:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.communicate()


def network() -> Namespaces:
    return Namespaces({r: dict.fromkeys(SERVERS, 50e6) for r in RAILS}, "sr", offloads=True)


def await_(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("parts", [(0.5, 0.5), ()], ids=["cut", "not cut"])
def test_a_nic_that_goes_away_in_mid_collective_ends_the_script(
    tmp_path: Path, parts: tuple[float, ...]
) -> None:
    with network() as servers, running(tmp_path, servers, parts=parts) as ranks:
        run("ip", "-n", servers.name("s1"), "link", "set", servers.nic("b"), "down")
        await_(lambda: any(one.poll() is not None for one in ranks))
        # Of the first to end; the launcher then ends the others.
        ended = next(one for one in ranks if one.poll() is not None)
        output, _ = ended.communicate(timeout=LONGEST_SECONDS)
        events = [parse_rank_event(line) for line in output.splitlines() if line[:1] == "{"]
        (failed,) = [event for event in events if isinstance(event, Failed)]
        assert ended.returncode == 1
        assert failed.what.startswith("rail b has carried nothing from nicb to 10.77.1.")


@pytest.mark.slow
@pytest.mark.network
def test_a_nic_that_comes_back_in_time_only_delays_the_script(tmp_path: Path) -> None:
    with network() as servers, running(tmp_path, servers, parts=(0.5, 0.5)) as ranks:
        link = ("ip", "-n", servers.name("s1"), "link", "set", servers.nic("b"))
        run(*link, "down")
        time.sleep(2)
        run(*link, "up")
        (tmp_path / "end").touch()
        assert [one.wait(timeout=LONGEST_SECONDS) for one in ranks] == [0, 0]


@pytest.mark.slow
@pytest.mark.network
def test_a_process_that_takes_long_is_waited_for(tmp_path: Path) -> None:
    """Its peer's bytes stay where they are, but its kernel answers."""
    with network() as servers, running(tmp_path, servers, parts=(0.5, 0.5)) as ranks:
        pid = int(Path(f"/proc/{ranks[1].pid}/task/{ranks[1].pid}/children").read_text())
        os.kill(pid, signal.SIGSTOP)
        time.sleep(LOSS_SECONDS + 4)
        os.kill(pid, signal.SIGCONT)
        (tmp_path / "end").touch()
        assert [one.wait(timeout=LONGEST_SECONDS) for one in ranks] == [0, 0]
