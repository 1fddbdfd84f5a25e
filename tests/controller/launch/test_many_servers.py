"""Many servers are asked at once, and those that are silent hide nothing of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from placewire.controller.abandonable import each_in_a_thread
from placewire.controller.errors import JobFailed, LaunchFailed
from placewire.controller.launch import ssh
from placewire.controller.launch.launcher import RunningProgram
from placewire.controller.launch.own_runs import RANK, Run, finding
from placewire.controller.launch.ssh import SshLauncher
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import SshServer, Surroundings

PLAN = "small"


class Told(SshServer):
    """A rank of the plan runs on it until it is told to end, or, if it is stubborn, longer."""

    def __init__(self, name: str, *, stubborn: bool = False) -> None:
        super().__init__(name, "127.0.0.1", Login())
        self.rank, self.stubborn, self.has_ended = Run(RANK, plan=PLAN), stubborn, False

    def run(self, script: str, given: bytes = b"", seconds: float = 60.0) -> tuple[int, str, str]:
        if script == finding():
            mark = f"PLACEWIRE_RUN={self.rank.identifier}:rank:7:{PLAN}:/tmp/placewire-x"
            return 0, f"7 1 7 5 Ss\n9 7 7 5 S\n--\n/proc/9/environ:{mark}\0", ""
        self.has_ended = not self.stubborn
        return 0, "9\n" if self.stubborn else "", ""


class Gone(Told):
    def run(self, script: str, given: bytes = b"", seconds: float = 60.0) -> tuple[int, str, str]:
        raise LaunchFailed("SSH cannot be reached", where=self.name, remedy="look at its sshd")


class Silent(Told):
    """It answers nothing until the test has ended."""

    goes_on = threading.Event()

    def run(self, script: str, given: bytes = b"", seconds: float = 60.0) -> tuple[int, str, str]:
        self.goes_on.wait()
        return super().run(script)


@pytest.fixture(autouse=True)
def _silence_ends() -> Iterator[None]:
    Silent.goes_on.clear()
    yield
    Silent.goes_on.set()


def launcher_on(*servers: SshServer) -> SshLauncher:
    launcher = SshLauncher({}, Login(), Surroundings("python", None, {}), plan=PLAN)
    launcher._servers = {one.name: one for one in servers}
    return launcher


def ranks_of(*servers: Told) -> list[RunningProgram]:
    return [RunningProgram(one.name, 9, 5.0, one.rank.identifier, PLAN) for one in servers]


def test_silent_servers_hide_no_ranks_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_LOOK_SECONDS", 5.0)
    silent = [Silent(f"s{k}") for k in range(20)]
    with pytest.raises(LaunchFailed, match=r"s0: nothing was heard of it within 5 s") as caught:
        launcher_on(*silent, Told("t1"), Told("t2")).left()
    assert [(rank.server, rank.plan) for rank in caught.value.found] == [("t1", PLAN), ("t2", PLAN)]
    assert caught.value.where.split(", ") == [one.name for one in silent]


def test_silent_servers_are_named_before_a_job_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_READY_SECONDS", 0.5)
    with pytest.raises(LaunchFailed, match="nothing was heard of it") as caught:
        launcher_on(Silent("s1")).require_ready()
    assert caught.value.where == "s1"


def test_ranks_on_the_servers_that_answer_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_END_SECONDS", 5.0)
    gone, silent, well, last = Gone("s1"), Silent("s2"), Told("s3"), Told("s4")
    launcher = launcher_on(gone, silent, well, last)
    with pytest.raises(LaunchFailed, match=r"s1: SSH cannot.*; s2: nothing was heard") as caught:
        launcher.end_left(ranks_of(gone, silent, well, last))
    assert caught.value.where == "s1, s2" and well.has_ended and last.has_ended


def test_a_rank_that_does_not_end_is_told_beside_a_server_that_is_gone() -> None:
    gone, stubborn, well = Gone("s1"), Told("s2", stubborn=True), Told("s3")
    launcher = launcher_on(gone, stubborn, well)
    with pytest.raises(JobFailed, match=r"do not end: s2 \(pid 9\); s1: SSH cannot") as caught:
        launcher.end_left(ranks_of(gone, stubborn, well))
    assert caught.value.where == "s2, s1" and well.has_ended


def made(calls: list[Callable[[], int]], at_once: int, seconds: float) -> list[int]:
    return each_in_a_thread(calls, at_once, seconds=seconds, otherwise=lambda number: -number)


def test_results_come_in_order_and_the_first_error_is_raised() -> None:
    assert made([lambda k=k: k for k in range(50)], 4, 600.0) == list(range(50))
    with pytest.raises(ZeroDivisionError):
        made([lambda: 1, lambda: 1 // 0, lambda: int("x")], 2, 600.0)
    assert made([], 4, 600.0) == []


def test_no_call_is_begun_once_time_is_over() -> None:
    goes_on, begun = threading.Event(), list[int]()
    with_end = threading.Event()

    def waits(number: int) -> int:
        begun.append(number)
        goes_on.wait()
        if number == 2:
            with_end.set()
        return number

    calls: list[Callable[[], int]] = [lambda k=k: waits(k) for k in (1, 2)]
    try:
        assert made([lambda: 7, *calls, lambda: waits(3)], 2, 2.0) == [7, -1, -2, -3]
    finally:
        goes_on.set()
    assert with_end.wait(60) and begun == [1, 2]
