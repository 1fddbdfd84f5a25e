"""Scripts that place themselves: their environment, their rails, and how they end."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import placewire.job.script.script
from placewire.agent.contract.measurement import InterfaceCounters
from placewire.job.contract.specification import (
    Carried,
    Failed,
    Finished,
    RailInterface,
    ScriptSpec,
    Started,
    parse_rank_event,
)
from placewire.job.script import environment, script
from placewire.job.script.environment import ON_PATH, script_environment
from tests.free_port import free_port
from tests.paths import ROOT


def spec(script: Path, **more: Any) -> ScriptSpec:
    rails = ("a", "b")
    document = {
        "rank": 0,
        "world_size": 1,
        "device": "s1/0",
        "master_address": "127.0.0.1",
        "master_tcp_port": free_port(),
        "rail_interfaces": [RailInterface(rail=r, interface="lo", address="") for r in rails],
        "rail_pattern": (0, 1, 1, 0),
        "script": str(script),
    }
    return ScriptSpec.model_validate({**document, **more})


def start(
    of: ScriptSpec, folder: Path, under: Sequence[str] = (), **environment: str
) -> subprocess.Popen[bytes]:
    file = folder / "spec.json"
    file.write_text(of.model_dump_json())
    return subprocess.Popen(
        [*under, sys.executable, "-m", "placewire.job", str(file)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, **environment},
    )  # fmt: skip


def finish(process: subprocess.Popen[bytes]) -> tuple[int, list[Any], list[str]]:
    """Exit status, events, and what was printed beside them."""
    try:
        out, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    lines = out.decode().splitlines()
    events = [parse_rank_event(line) for line in lines if line.startswith("{")]
    return process.returncode, events, [line for line in lines if not line.startswith("{")]


def await_end(pid: int) -> None:
    """Waits for a process that was killed: a busy machine lets it end late."""
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_is_told_what_torchrun_would_tell_it() -> None:
    of = spec(Path("x.py"), rank=1, world_size=3, processes=2)
    found = script_environment(of, 1, {"PATH": "/bin", "RANK": "9"})
    assert found["RANK"] == "3" and found["LOCAL_RANK"] == "1" and found["WORLD_SIZE"] == "6"
    assert found["LOCAL_WORLD_SIZE"] == "2" and found["GROUP_RANK"] == "1"
    assert found["MASTER_ADDR"] == "127.0.0.1" and int(found["MASTER_PORT"]) > 0
    assert found["GLOO_SOCKET_IFNAME"].split(",") == ["lo"] * 4
    assert found["NCCL_SOCKET_IFNAME"] == "=lo,lo" and found["NCCL_IB_DISABLE"] == "1"
    assert found["PATH"] == "/bin"


@pytest.mark.parametrize(
    "there",
    [
        {"NCCL_IB_DISABLE": "0"}, {"NCCL_IB_DISABLE": "00"}, {"NCCL_NET": "IB"},
        {"NCCL_NET": "AWS Libfabric"}, {"GLOO_DEVICE_TRANSPORT": "IBVERBS"},
    ],
)  # fmt: skip
def test_a_server_s_own_settings_do_not_make_a_script_use_rdma(there: dict[str, str]) -> None:
    """RDMA passes by every queue; the plan's own variables are checked when it is read."""
    found = script_environment(spec(Path("x.py")), 0, there)
    assert (found["NCCL_IB_DISABLE"], found["NCCL_NET"]) == ("1", "Socket")
    assert found.get("GLOO_DEVICE_TRANSPORT", "TCP") == "TCP"


def test_a_script_has_the_threads_that_it_would_have_under_torchrun() -> None:
    assert "OMP_NUM_THREADS" not in script_environment(spec(Path("x.py"), threads=0), 0, {})
    assert script_environment(spec(Path("x.py"), threads=4), 0, {})["OMP_NUM_THREADS"] == "4"


def test_nccl_has_a_thread_for_what_a_nic_carries() -> None:
    found = script_environment(spec(Path("x.py"), fastest_bits_per_second=100e9), 0, {})
    assert found["NCCL_SOCKET_NTHREADS"] == "4"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in found, "a script has its own choice"


def test_a_virtual_environment_is_as_if_activated(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").touch()
    python = str(tmp_path / "bin/python")
    there = {"PATH": f"/bin:{tmp_path}/bin", "VIRTUAL_ENV": "/another"}
    for given in ({"PATH": "/bin"}, there):
        for python_words in ((python,), (python, "-m")):
            found = script_environment(spec(Path("x.py"), python=python_words), 0, given)
            assert found["PATH"] == f"{tmp_path}/bin:/bin"
            assert found["VIRTUAL_ENV"] == str(tmp_path)
    for words in ((), ("/usr/bin/python3",), ("chroot", "/srv", python)):
        found = script_environment(spec(Path("x.py"), python=words), 0, {"PATH": "/bin"})
        assert found["PATH"] == "/bin" and "VIRTUAL_ENV" not in found


def test_a_script_may_open_as_much_as_the_system_allows(tmp_path: Path) -> None:
    script = tmp_path / "limit.py"
    script.write_text("import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))\n")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    process = start(spec(script), tmp_path, under=("prlimit", "--nofile=256:"))
    code, _, printed = finish(process)
    assert code == 0 and printed == [f"[0] ({min(hard, 65_536)}, {hard})"]


def test_a_path_of_the_plan_needs_no_programs_of_the_system(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("print('ran')\n")
    code, _, printed = finish(start(spec(script), tmp_path, PATH="/nowhere"))
    assert code == 0 and printed == ["[0] ran"]


def test_interfaces_of_the_server_s_own_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    of = spec(Path("x.py"))
    assert not any("is set by job.env" in note for note in script._notes(of))
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ens1f0")
    assert script._notes(of)[-1].startswith("NCCL_SOCKET_IFNAME is set by job.env or ")
    assert "take rails" in script._notes(of)[0]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ens1f0")
    assert not any("take rails" in note for note in script._notes(of))


def test_what_the_plan_says_of_sockets_and_threads_wins() -> None:
    given = {"GLOO_SOCKET_IFNAME": "eth7", "OMP_NUM_THREADS": "8", "NCCL_NSOCKS_PERTHREAD": "4"}
    found = script_environment(spec(Path("x.py")), 0, given)
    assert given.items() <= found.items()


def test_on_a_server_with_gpus_the_start_says_that_none_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = spec(Path("x.py"), rail_parts=(0.75, 0.25))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(script, "has_gpus", lambda: True)
    assert script._notes(of)[-1].startswith("none is cut: this server has GPUs")
    monkeypatch.setattr(script, "has_gpus", lambda: False)
    assert script._notes(of)[-1].endswith("are cut: a 75%, b 25%")


def test_a_script_finds_on_its_path_what_cuts_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "has_gpus", lambda: False)
    parts = spec(Path("x.py"), rail_parts=(0.75, 0.25))
    found = script_environment(parts, 0, {"PYTHONPATH": "/mine"})
    assert found["PYTHONPATH"].split(os.pathsep) == [str(ON_PATH), "/mine"]
    assert found["PLACEWIRE_NICS"] == "lo:0.75,lo:0.25"
    assert (ON_PATH / "sitecustomize.py").is_file()
    assert script_environment(parts, 0, {})["PYTHONPATH"] == str(ON_PATH)
    # A user who chooses gloo's interfaces wants no others; the other ranks must learn of it.
    assert script_environment(parts, 0, {"GLOO_SOCKET_IFNAME": "eth7"})["PLACEWIRE_NICS"] == "no"
    monkeypatch.setattr(environment, "has_gpus", lambda: True)
    assert script_environment(parts, 0, {})["PLACEWIRE_NICS"] == "no"
    for of in (spec(Path("x.py")), spec(Path("x.py"), rail_parts=(1.0,))):
        found = script_environment(of, 0, {})
        assert "PLACEWIRE_NICS" not in found and "PYTHONPATH" not in found


def test_a_rail_that_is_gone_for_a_moment_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {"a0": 100, "b0": 50}

    def counters(names: tuple[str, ...]) -> tuple[InterfaceCounters, ...]:
        return tuple(
            InterfaceCounters(interface=n, receive_bytes=0, transmit_bytes=seen[n])
            for n in names
            if n in seen
        )

    monkeypatch.setattr(placewire.job.script.script, "read_counters", counters)
    interfaces = [RailInterface(rail=r, interface=f"{r}0", address="") for r in "ab"]
    rails = placewire.job.script.script._Rails(spec(Path("x.py"), rail_interfaces=interfaces))
    seen["a0"] = 180
    del seen["b0"]
    assert rails.carried(0, 1.0).sent_bytes == {"a": 80, "b": 0}
    seen["b0"] = 7  # made anew
    assert rails.carried(0, 2.0).sent_bytes == {"a": 80, "b": 7}
    seen["b0"] = 20
    assert rails.carried(0, 3.0).sent_bytes == {"a": 80, "b": 20}


def test_an_ordinary_script_trains_and_is_told_about(tmp_path: Path) -> None:
    of = spec(ROOT / "examples" / "ddp.py", processes=2, arguments=("--steps", "6"))
    code, events, printed = finish(start(of, tmp_path))
    assert code == 0, (events, printed)
    sums = {line.rsplit(" ", 1)[1] for line in printed if "parameters sum to" in line}
    assert len(sums) == 1, "both processes have the same parameters"
    assert any(line.startswith("[0] step 5: ") for line in printed)
    (finished,) = [event for event in events if isinstance(event, Finished)]
    assert {row.rail for row in finished.traffic} == {"a", "b"}
    last = [event for event in events if isinstance(event, Carried)][-1]
    assert last.sent_bytes["a"] > 6 * 4 * 256 * 256 * 4, "six steps of gradients, over loopback"


def test_a_script_needs_nothing_of_ours_in_its_own_environment(tmp_path: Path) -> None:
    """Neither our packages nor those that we need are there, although the path of this program
    shows them; what the plan put on the path is."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "own")], check=True
    )
    script, python = tmp_path / "script.py", tmp_path / "own" / "bin" / "python"
    script.write_text(
        "import importlib.util as u, os, sys\n"
        "print(sys.prefix, *(bool(u.find_spec(name)) for name in "
        "('placewire', 'pydantic', 'torch', 'helper')), os.environ['RANK'])\n"
    )
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "helper.py").write_text("")
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path / "helpers")])
    running = start(spec(script, python=[str(python)]), tmp_path, PYTHONPATH=path)
    status, _, printed = finish(running)
    assert status == 0
    assert printed == [f"[0] {tmp_path / 'own'} False False False True 0"]


def test_a_command_may_stand_before_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['MARK'])\n")
    of = spec(script, python=["env", "MARK=here", sys.executable], processes=2)
    status, _, printed = finish(start(of, tmp_path))
    assert status == 0 and sorted(printed) == ["[0] here", "[1] here"]


def test_the_ranks_of_a_server_s_processes_are_those_that_the_script_knows(tmp_path: Path) -> None:
    """A server's program has a rank as well, which is another where servers have many processes."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "rank, told = os.environ['RANK'], pathlib.Path(__file__ + '.told')\n"
        "print('I am', rank)\n"
        # The failure of one ends the other.
        "told.touch() if rank == '2' else None\n"
        "while not told.exists(): time.sleep(0.01)\n"
        "sys.exit(rank == '3')\n"
    )
    of = spec(script, rank=1, world_size=2, processes=2)
    status, events, printed = finish(start(of, tmp_path))
    assert status == 1 and sorted(printed) == ["[2] I am 2", "[3] I am 3"]
    (failed,) = [one for one in events if isinstance(one, Failed)]
    assert failed.rank == 1 and failed.what == f"{script} with RANK 3 ended with 1"


@pytest.mark.parametrize(("processes", "told"), [(1, "1 process; "), (2, "2 processes; ")])
def test_the_start_says_how_many_processes_there_are(
    tmp_path: Path, processes: int, told: str
) -> None:
    (tmp_path / "script.py").write_text("")
    of = spec(tmp_path / "script.py", processes=processes)
    _, events, _ = finish(start(of, tmp_path))
    (started,) = [one for one in events if isinstance(one, Started)]
    assert started.notes[0].startswith(told)


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    status, events, _ = finish(start(spec(tmp_path / "s.py", python=["/none"]), tmp_path))
    assert status == 1
    (failed,) = [one for one in events if isinstance(one, Failed)]
    assert failed.what.startswith(f"{tmp_path / 's.py'} with RANK 0 ended with ")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise SystemExit(3)", "ended with 3"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("os.kill(os.getpid(), 35)", "killed by signal 35"),
    ],
)
def test_a_process_that_fails_ends_the_others_and_is_named(
    tmp_path: Path, body: str, said: str
) -> None:
    script = tmp_path / "failing.py"
    script.write_text(
        f"import os, time\nif os.environ['RANK'] == '1':\n    {body}\ntime.sleep(600)\n"
    )
    code, events, _ = finish(start(spec(script, processes=2), tmp_path))
    assert code == 1
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert "failing.py with RANK 1 " in failed.what and said in failed.what


def test_nothing_that_a_process_started_outlives_the_program(tmp_path: Path) -> None:
    """The test starts a helper in a session of its own whose parent is gone, as experiment
    trackers do."""
    script, told = tmp_path / "starting.py", tmp_path / "pid"
    script.write_text(
        "import subprocess, sys\n"
        "helper = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(told)!r}, 'w').write(str(helper.pid))\n"
    )
    code, events, _ = finish(start(spec(script), tmp_path))
    assert code == 0 and any(isinstance(event, Finished) for event in events)
    await_end(int(told.read_text()))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_it_ends_its_processes(tmp_path: Path, how: signal.Signals) -> None:
    script, told = tmp_path / "waiting.py", tmp_path / "pid"
    script.write_text(
        f"import os, time\nopen({str(told)!r} + '.new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(told)!r} + '.new', {str(told)!r})\ntime.sleep(600)\n"
    )
    process = start(spec(script), tmp_path)
    try:
        deadline = time.monotonic() + 300
        while not told.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        pid = int(told.read_text())
        process.send_signal(how)
        code, events, _ = finish(process)
        await_end(pid)
        if how == signal.SIGTERM:
            assert code == 128 + how
            assert any(isinstance(e, Failed) and "SIGTERM" in e.what for e in events)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_rail_that_is_not_there_is_named(tmp_path: Path) -> None:
    rails = [RailInterface(rail="a", interface="none0", address="")]
    of = spec(tmp_path / "x.py", rail_interfaces=rails, rail_pattern=(0,))
    code, events, _ = finish(start(of, tmp_path))
    assert code == 1
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert "interface none0 of rail a does not exist" in failed.what


def test_a_line_that_looks_like_an_event_is_none(tmp_path: Path) -> None:
    script = tmp_path / "talkative.py"
    text = json.dumps({"event": "failed", "rank": 0, "what": "no"})
    script.write_text(f"print({text!r})\n")
    code, events, printed = finish(start(spec(script), tmp_path))
    assert code == 0 and f"[0] {text}" in printed
    assert not any(isinstance(event, Failed) for event in events)


def test_a_line_of_any_length_stays_text_of_its_process(tmp_path: Path) -> None:
    """Without an end, and with what would be an event where it is cut."""
    script = tmp_path / "long.py"
    event = '{"event": "finished", "rank": 0, "traffic": [], "peak_memory_bytes": 1}'
    script.write_text(
        f"import sys\nsys.stdout.write('x' * 65_536 + {event!r} + chr(10) + {event!r})\n"
        f"sys.stdout.write(chr(13) + {event!r} + chr(0) + {event!r})\n"
        f"sys.stdout.flush()\nimport os, subprocess\nos.write(1, b'{event}')\n"
        f"subprocess.run(['echo', {event!r}])\n"
        f"subprocess.run(['sh', '-c', 'echo $0 > /dev/stdout; echo $0 >&2', {event!r}])\n"
    )
    process = start(spec(script), tmp_path)
    try:
        out, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    lines = out.split(b"\n")
    printed = [line for line in lines if event.encode() in line]
    assert printed and all(line.startswith(b"[0] ") for line in printed)
    assert max(map(len, lines)) <= 65_536 + len("[0] ")


def test_of_a_line_of_progress_the_last_state_is_passed_on(tmp_path: Path) -> None:
    """As tqdm writes it; with what would be an event behind a return."""
    script = tmp_path / "bars.py"
    script.write_text(
        "import sys\n"
        "for stream in sys.stdout, sys.stderr:\n"
        "    for part in range(3_000):\n"
        "        stream.write(f'{chr(13)}{part / 29.99:5.1f}% ' + '=' * 40)\n"
        "    stream.write(chr(10) + 'after it' + chr(13) + chr(10))\n"
        "    stream.write('50%' + chr(13) + '{\"event\": \"failed\"}')\n"
    )
    process = start(spec(script), tmp_path)
    out, errors = process.communicate(timeout=300)
    printed = [line for line in out.decode().splitlines() if line.startswith("[0] ")]
    expected = ["[0] 100.0% " + "=" * 40, "[0] after it", '[0] {"event": "failed"}']
    assert printed == expected and errors.decode().splitlines()[-3:] == expected
    assert b"\r" not in out and process.returncode == 0
