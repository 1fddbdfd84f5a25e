"""The main job on a real lab (Open vSwitch, HTB, agents, iperf3, torch), as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from placewire.controller.decide.measured.calibration import ASSUMED_SETUP_SECONDS
from placewire.controller.lab.record import exclusive
from placewire.controller.plan.plan_file import load_plan
from placewire.optimizer.cluster_plan.payload import payload_capacity
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import load_placement
from tests.end_to_end.cluster import (
    NIC_BITS_PER_SECOND,
    SERVERS,
    Finished,
    Process,
    TestCluster,
    interrupt,
    once,
    read_report,
)
from tests.end_to_end.scripts import SUMS, require_that_sums_used_every_nic
from tests.end_to_end.snapshots import differences, run
from tests.measured import until
from tests.paths import ROOT
from tests.torch_alone import torch_alone
from tests.trace_files import (
    check_trace,
    computed,
    expected_operators,
    expected_transfers,
    transfers,
)

pytestmark = [pytest.mark.network, pytest.mark.lab, pytest.mark.slow]

MODEL = "placewire.examples.models.mlp:training_step"
# The lease of a state that is only staged.
SHORTEST_LEASE_SECONDS = 30


def test_placed_over_servers_trains_exactly_as_on_one(
    cluster: TestCluster, untouched: None
) -> None:
    report_file = cluster.folder / "run.json"
    document = cluster.document()
    document["job"]["trace"] = {"folder": str(cluster.folder / "traces"), "steps": 1}
    document["job"]["validation"] = {"every": 2, "batches": 2}
    done = cluster.run("apply", str(cluster.plan(document)), "--yes", "--out", str(report_file))
    assert done.code == 0, done.told
    report = read_report(report_file)
    check_traces(report)
    assert report["server_pairs"], "no two servers talk"
    assert report["single_device_seconds"] is None, "one device could hold it"
    assert report["links"] and all(link["within_tolerance"] for link in report["links"])
    assert len(report["losses"]) == 3
    validated = [(row["step"], row["batches"], row["loss"]) for row in report["validations"]]
    assert [row[:2] for row in validated] == [(2, 2), (3, 2)]
    for step, _, loss in validated:
        assert f"validation after {step} steps: 2 batches in " in done.output
        assert f"loss {loss:.6f}" in done.output
    assert report["network"] == "restored"
    for row in report["traffic"]:
        assert row["sent_bytes"] == pytest.approx(row["planned_bytes"], rel=0.01, abs=64)
    assert "predicted" in done.output and "measured" in done.output

    roomy = cluster.document()
    for server in roomy["cluster"]["servers"]:
        server["devices"][0]["memory"] = "2GiB"
    roomy["solve"] = {"engine": "single"}
    roomy["job"]["validation"] = document["job"]["validation"]
    alone = cluster.run(
        "apply", str(cluster.plan(roomy, "roomy")), "--yes", "--out", str(report_file)
    )
    assert alone.code == 0, alone.told
    one = read_report(report_file)
    assert one["losses"] == report["losses"]
    assert [(row["step"], row["batches"], row["loss"]) for row in one["validations"]] == validated


@pytest.mark.thorough
def test_operators_and_paths_are_measured_on_the_servers_and_it_trains(
    cluster: TestCluster, untouched: None
) -> None:
    """All servers of the lab have the same processor; under two names it gets two columns of
    times."""
    document, report_file = cluster.document(), cluster.folder / "types.run.json"
    document["cluster"]["servers"][1]["devices"][0]["type"] = "cpu:other"
    document["cluster"]["setup_latency"] = "measured"
    plan = str(cluster.plan(document, "types"))
    done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
    assert done.code == 0, done.told
    report = read_report(report_file)
    assert len(report["losses"]) == 3 and report["server_pairs"]
    graph = load_graph(Path(report["files"]["graph"]))
    assert graph.device_types == ("cpu", "cpu:other")
    assert (graph.seconds.sum(axis=0) > 0).all()
    assert (graph.seconds[:, 0] != graph.seconds[:, 1]).any(), "measured twice, not copied"
    assert graph.notes["profiles"]["cpu:other"]["server"] == "s2"
    assert "cpu:other: profile on s2 (cpu:other): placewire.examples.models.mlp" in done.output
    check_calibrated(report, done.output)
    again = cluster.run("preview", plan)
    assert again.code == 0 and "as measured on this cluster" in again.output, again.told
    if not as_promised(report):
        document["network"]["calibrate"] = True
        plan = str(cluster.plan(document, "types"))

        def calibrated() -> Any:
            done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
            assert done.code == 0, done.told
            return read_report(report_file)

        report = until(as_promised, calibrated)
    assert as_promised(report), report["calibrated"]


def check_calibrated(report: dict[str, Any], output: str) -> None:
    """Every path that there was time for was calibrated."""
    rows = {(row["source"], row["destination"], row["rail"]): row for row in report["calibrated"]}
    paths = {(a, b, r) for a in SERVERS for b in SERVERS for r in "ab" if a != b}
    assert set(rows) <= paths
    told = f"{len(paths) - len(rows)} of {len(paths)} paths were too slow" in output
    assert told == (len(rows) < len(paths))
    assert {row["planned_setup_seconds"] for row in rows.values()} == {ASSUMED_SETUP_SECONDS}


def as_promised(report: dict[str, Any]) -> bool:
    """Whether gloo gets about its rate where one was promised (tests/job/test_calibrate.py says how
    exactly it is found), not the whole NIC's. A slow path has two messages of each size, so that
    one moment without a processor decides."""
    rows = report["calibrated"]
    promised = [row for row in rows if row["promised_bits_per_second"]]
    return (
        bool(promised)
        and all(
            row["bits_per_second"] == pytest.approx(row["promised_bits_per_second"], rel=0.3)
            for row in promised
        )
        and all(0 < row["setup_seconds"] < 0.05 for row in rows)
    )


def check_traces(report: dict[str, Any]) -> None:
    """The file has the last step as ranks recorded it, and as it was predicted."""
    placement = load_placement(Path(report["files"]["placement"]))
    trace = read_json(Path(report["files"]["trace"]))
    check_trace(trace)
    for source in ("predicted", "measured"):
        assert computed(trace, source) == expected_operators(placement, [2])
        assert transfers(trace, source) == expected_transfers(placement, [2])


def test_a_replay_takes_the_predicted_time_under_the_best_sharing(
    cluster: TestCluster, untouched: None
) -> None:
    """The best placement of this plan uses several servers: operators take long, messages
    little."""
    graph, report_file = cluster.folder / "graph.json.gz", cluster.folder / "replay.run.json"
    program = [
        sys.executable,
        "-m",
        "placewire.optimizer.commands.profile",
        "placewire.examples.models.mlp:training_step",
    ]
    options = ["--batch", "16", "--cache", str(cluster.folder), "--out", str(graph)]
    subprocess.run([*program, *options], cwd=ROOT, check=True, capture_output=True)
    document = cluster.document()
    for server in document["cluster"]["servers"]:
        server["devices"][0]["memory"] = "2GiB"
    document["cluster"]["setup_latency"] = "0.5us"
    document["job"] = {"kind": "replay", "graph": str(graph), "steps": 4, "time_scale": 400}
    document["network"]["sharing"] = "auto"
    document["solve"]["time_limit"] = "6s"
    plan = str(cluster.plan(document, "replay"))

    def replayed() -> Any:
        done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
        assert done.code == 0, done.told
        return read_report(report_file)

    def as_predicted(report: Any) -> bool:
        predicted = pytest.approx(report["predicted_step_seconds"], rel=0.25)
        return bool(report["measured_step_seconds"] == predicted)

    report = until(as_predicted, replayed)
    assert report["server_pairs"], "no two servers talk"
    shared = {row["sharing"]: row["step_seconds"] for row in report["considered"][:-1]}
    assert set(shared) == set(get_args(SharingName))
    assert report["considered"][-1]["rails"] == ["a"]
    # Sharings that differ by less than 1 % are ties.
    assert report["predicted_step_seconds"] <= min(shared.values()) * 1.01
    assert report["predicted_step_seconds"] < report["single_device_seconds"]
    assert as_predicted(report), report


@pytest.mark.thorough
@pytest.mark.parametrize("sharing", ["guarantee", "job"])
def test_what_may_borrow_is_measured_and_trains(
    cluster: TestCluster, untouched: None, sharing: str
) -> None:
    document, report_file = cluster.document(), cluster.folder / f"{sharing}.run.json"
    document["network"] |= {"sharing": sharing, "floor": "70%"}
    plan = str(cluster.plan(document, sharing))
    done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
    assert done.code == 0, done.told
    report = read_report(report_file)
    assert report["sharing"] == sharing and len(report["losses"]) == 3
    assert report["links"] and all(link["within_tolerance"] for link in report["links"])
    floor = 0.7 * payload_capacity(NIC_BITS_PER_SECOND)
    for link in report["links"]:
        # A receiver's NIC that is promised entirely has nothing to lend.
        assert link["at_most_bits_per_second"] >= link["promised_bits_per_second"]
        if sharing == "job":
            shared = floor / link["promised_bits_per_second"]
            assert round(shared) == pytest.approx(shared) and shared <= 2
    for row in report["traffic"]:
        assert row["sent_bytes"] == pytest.approx(row["planned_bytes"], rel=0.01, abs=64)


def _snapshots(cluster: TestCluster, plan: str, *words: str) -> Finished:
    """`controller verify` while no lab goes up, which raises a setting of the whole machine."""
    with exclusive():
        return cluster.run("verify", plan, *words)


def test_a_snapshot_tells_what_is_in_force_and_that_it_went(
    cluster: TestCluster, untouched: None
) -> None:
    plan = cluster.script_plan("snapshot", on_exit="keep")
    before = str(cluster.folder / "before.json")
    taken = _snapshots(cluster, plan, "--snapshot", before)
    assert taken.code == 0, taken.told
    applied = cluster.run("apply", plan, "--network-only", "--no-measurement", "--yes")
    assert applied.code == 0, applied.told
    kept = _snapshots(cluster, plan, "--against-snapshot", before)
    assert kept.code == 6, kept.told
    for what in ("bridge pw-nic0: was not there", "address nic0 10.7.0.1/24: was "):
        assert f"s1: {what}" in kept.output, kept.told
    destroyed = cluster.run("destroy", plan, "--yes")
    assert destroyed.code == 0, destroyed.told
    same = _snapshots(cluster, plan, "--against-snapshot", before)
    assert same.code == 0 and "nothing differs" in same.output, same.told


def test_network_only_keeps_then_changes_nothing_then_is_destroyed(
    cluster: TestCluster, untouched: None
) -> None:
    # With `drift: report` the agent does not heal what the test changes.
    document = cluster.script_document(on_exit="keep", drift="report")
    plan = str(cluster.plan(document, "keep"))
    report = cluster.folder / "keep.run.json"
    arguments = ("apply", plan, "--network-only", "--yes", "--out", str(report))
    shown = str(cluster.folder / "keep.shown.json")
    previewed = cluster.run("preview", plan, "--out", shown)
    assert previewed.code == 0, previewed.told
    first = cluster.run("apply", shown, *arguments[2:])
    assert first.code == 0, first.told
    assert all(count > 0 for count in read_report(report)["changes"].values())
    between = cluster.snapshots()

    second = cluster.run(*arguments)
    assert second.code == 0, second.told
    assert set(read_report(report)["changes"].values()) == {0}
    assert "0 changes on every server" in second.output
    assert differences(between, cluster.snapshots()) == []

    status = cluster.run("status", plan)
    assert status.code == 0 and status.output.count("committed") == len(SERVERS), status.told
    assert status.output.count("as decided") == len(SERVERS), status.told

    verified = cluster.run("verify", plan)
    assert verified.code == 0 and "kept" in verified.output, verified.told
    assert differences(between, cluster.snapshots()) == []

    shaped = read_report(report)["links"][0]["source"]
    throttle(cluster, shaped)
    assert cluster.run("status", plan).output.count("as decided") == len(SERVERS) - 1
    verified = cluster.run("verify", plan)
    assert verified.code == 6 and "differs from what was decided" in verified.output, verified.told
    third = cluster.run(*arguments)
    assert third.code == 0, third.told
    changes = read_report(report)["changes"]
    assert changes.pop(shaped) > 0 and set(changes.values()) == {0}
    assert cluster.run("status", plan).output.count("as decided") == len(SERVERS)

    for server in document["cluster"]["servers"]:
        for nic in server["nics"]:
            nic["rate"] = "6Mbit"
    other = cluster.run("apply", str(cluster.plan(document, "other")), *arguments[2:])
    assert other.code == 0, other.told
    assert sum(read_report(report)["changes"].values()) > 0
    back = cluster.run("rollback", plan, "--yes")
    assert back.code == 0 and "kept: s1 " in back.output, back.told
    assert "0 changes on every server" in cluster.run("preview", plan).output

    destroyed = cluster.run("destroy", plan, "--yes")
    assert destroyed.code == 0, destroyed.told
    verified = cluster.run("verify", plan)
    assert verified.code == 2 and f"nothing of plan {cluster.name!r} is in force" in verified.output


def test_preview_shows_the_difference_and_touches_nothing(
    cluster: TestCluster, untouched: None
) -> None:
    shown = str(cluster.folder / "shown.json")
    done = cluster.run("preview", str(cluster.plan(cluster.document())), "--out", shown)
    assert done.code == 0, done.told
    for server in SERVERS:
        assert f"{server}: " in done.output
    assert "+ queue" in done.output and "+ bridge" in done.output
    s2 = cluster.namespace("s2")
    setting = "net.ipv4.conf.nic1.arp_ignore"
    run(s2, "sysctl", "-qw", f"{setting}=1")
    try:
        stale = cluster.run("apply", shown, "--yes")
    finally:
        run(s2, "sysctl", "-qw", f"{setting}=0")
    assert stale.code == 5 and f"s2: sysctls {setting}" in stale.output, stale.told
    assert "staging" not in stale.output


def test_init_writes_a_plan_of_what_the_agents_find(cluster: TestCluster, untouched: None) -> None:
    file = cluster.folder / "found.yaml"
    arguments = ("init", *SERVERS, "--lab", cluster.name, "--out", str(file), "--model", MODEL)
    done = cluster.run(*arguments)
    assert done.code == 0, done.told
    wanted = cluster.document()["cluster"]["servers"]
    for found, server in zip(load_plan(file).cluster.servers, wanted, strict=True):
        assert (found.name, found.management) == (server["name"], server["management"])
        nics = [(nic.name, nic.rail, str(nic.address)) for nic in found.nics]
        assert nics == [(nic["name"], nic["rail"], nic["address"]) for nic in server["nics"]]
    again = cluster.run(*arguments)
    assert again.code == 2 and "exists already" in again.output, again.told


def test_a_wrong_plan_is_exit_3(cluster: TestCluster, untouched: None) -> None:
    document = cluster.document()
    document["cluster"]["servers"][0]["nics"][0]["rate"] = "quick"
    done = cluster.run("apply", str(cluster.plan(document, "wrong")), "--yes")
    assert done.code == 3 and "cluster.servers[0].nics[0].rate" in done.output


def test_what_fits_nowhere_is_exit_4(cluster: TestCluster, untouched: None) -> None:
    document = cluster.document()
    for server in document["cluster"]["servers"]:
        server["devices"][0]["memory"] = "100KiB"
    done = cluster.run("apply", str(cluster.plan(document, "tiny")), "--yes")
    assert done.code == 4, done.told


def test_an_agent_that_is_down_is_exit_5(cluster: TestCluster, untouched: None) -> None:
    (pid,) = cluster.processes("placewire.agent.main", "s2")
    os.kill(pid, signal.SIGSTOP)
    try:
        done = cluster.run("apply", str(cluster.plan(cluster.document())), "--yes")
        doctor = cluster.run("doctor", str(cluster.plan(cluster.document())), "--json")
    finally:
        os.kill(pid, signal.SIGCONT)
    servers = doctor.document["servers"]
    found = {server: [one["what"] for one in some] for server, some in servers.items()}
    assert doctor.code == 5 and found["s2"] == ["does not dial in"], doctor.told
    assert "does not dial in" not in found["s1"] + found["s3"]
    assert done.code == 5 and "s2" in done.output, done.told


def throttle(cluster: TestCluster, server: str) -> None:
    """Slows every pair's queue on this server in the kernel, without Open vSwitch's knowledge."""
    for nic in ("nic0", "nic1"):
        classes = run(cluster.namespace(server), "tc", "class", "show", "dev", nic)
        for line in classes.splitlines():
            name = line.split()[2]
            if line.startswith("class htb 1:") and " parent " in line and name > "1:2":
                # fmt: off
                run(cluster.namespace(server), "tc", "class", "change", "dev", nic, "parent",
                    "1:fffe", "classid", name, "htb", "rate", "1mbit", "ceil", "1mbit")
                # fmt: on


def test_a_queue_that_someone_throttles_is_exit_6(cluster: TestCluster, untouched: None) -> None:
    # Else the agent heals it during the measurement.
    plan = cluster.script_plan("throttled", drift="report")

    def throttle_all(_: object) -> None:
        for server in SERVERS:
            throttle(cluster, server)

    on_line = once("measuring all promised", throttle_all)
    done = cluster.run("apply", plan, "--yes", on_line=on_line)
    assert done.code == 6, done.told
    assert "promised rates were not delivered" in done.output and " queue " in done.output


def long_plan(cluster: TestCluster, **network: Any) -> str:
    """The plan of a placed job that nobody waits for."""
    document = cluster.document()
    document["job"]["steps"] = 500
    document["network"] |= network
    return str(cluster.plan(document, "long"))


def test_a_killed_rank_is_exit_7_and_all_ranks_are_gone(
    cluster: TestCluster, untouched: None
) -> None:
    killed: list[float] = []

    def kill_one(process: Process) -> None:
        os.kill(cluster.ranks()[-1], signal.SIGKILL)
        killed.append(time.monotonic())

    done = cluster.run("apply", long_plan(cluster), "--yes", on_line=once("step 1:", kill_one))
    assert done.code == 7, done.told
    assert killed and time.monotonic() - killed[0] < 30
    assert cluster.ranks() == []


# What it prints there is the same for a script, for which less is decided before.
BEFORE_THE_JOB = ("staging on every server", "measuring all")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("waiting for every agent", marks=pytest.mark.thorough),
        *BEFORE_THE_JOB,
        pytest.param("running the job", marks=pytest.mark.thorough),
        pytest.param("step 1:", marks=pytest.mark.thorough),
    ],
)
def test_an_interrupt_at_any_stage_restores(
    cluster: TestCluster, untouched: None, words: str
) -> None:
    placed = words not in BEFORE_THE_JOB
    plan = long_plan(cluster) if placed else cluster.script_plan("long")
    done = cluster.run("apply", plan, "--yes", on_line=once(words, interrupt))
    assert done.code == 130, done.told
    assert cluster.ranks() == []


def test_an_interrupt_restores_though_what_read_the_output_ended_first(
    cluster: TestCluster, untouched: None
) -> None:
    """Like `| tee run.log`, which Ctrl-C ends too."""
    plan = cluster.script_plan("endless", "--steps", "100000")
    process = cluster.start("apply", plan, "--yes")
    watchdog = threading.Timer(600, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert any(b"step 1:" in line for line in process.stdout), "the job never ran"
        process.stdout.close()
        interrupt(process)
        assert process.wait() == 130
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
    assert cluster.ranks() == []


def killed_in_the_middle(cluster: TestCluster, plan: str, words: str) -> None:
    """Kills a controller that applies this plan when it prints these words."""
    before = cluster.snapshots()
    done = cluster.run("apply", plan, "--yes", on_line=once(words, lambda process: process.kill()))
    assert done.code == -signal.SIGKILL
    assert cluster.snapshots() != before, "killed before anything was changed"


def test_a_killed_controller_is_undone_by_the_leases(cluster: TestCluster, untouched: None) -> None:
    before = cluster.snapshots()
    killed_in_the_middle(cluster, long_plan(cluster, lease="10s"), "step 1:")
    deadline = time.monotonic() + 60
    # A rank whose server is restored may get a processor a moment later, and then ends.
    while (cluster.snapshots() != before or cluster.ranks()) and time.monotonic() < deadline:
        time.sleep(1)
    assert cluster.ranks() == []


def test_what_a_killed_controller_left_is_undone_at_once_by_the_next(
    cluster: TestCluster, untouched: None
) -> None:
    plan = cluster.script_plan("long", lease="10s")
    killed_in_the_middle(cluster, plan, "measuring all promised")
    status = cluster.run("status", plan)
    assert "was left at 'staged'" in status.output and "recover" in status.output, status.told
    done = cluster.run("recover", plan, "--yes")
    assert done.code == 0 and "on its former state" in done.output, done.told
    assert done.seconds < SHORTEST_LEASE_SECONDS
    assert "no change was left unfinished" in cluster.run("recover", plan, "--yes").output


def test_without_a_confirmation_nothing_happens(cluster: TestCluster, untouched: None) -> None:
    done = cluster.run("apply", str(cluster.plan(cluster.document())))
    assert done.code == 2 and "--yes" in done.output, done.told


def test_an_ordinary_script_uses_every_nic(cluster: TestCluster, untouched: None) -> None:
    """DistributedDataParallel, started as by torchrun, sends its bytes over both NICs."""
    report_file = cluster.folder / "script.run.json"
    plan = cluster.script_plan("script", "--steps", "32", "--width", "128")
    done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
    assert done.code == 0, done.told
    report = read_report(report_file)
    assert report["sharing"] == "job" and report["links"] and report["network"] == "restored"
    assert {(row["server"], row["nic"]) for row in report["rails"]} == {
        (server, nic) for server in SERVERS for nic in ("nic0", "nic1")
    }
    assert all(row["within_tolerance"] for row in report["rails"]), report["rails"]
    sums = {line.rsplit(" ", 1)[1] for line in done.output.splitlines() if "sum to" in line}
    assert len(sums) == 1
    assert cluster.run("history", plan).code == 0


@pytest.mark.thorough
def test_a_script_in_an_environment_that_lacks_us_uses_every_nic(
    cluster: TestCluster, untouched: None
) -> None:
    document, report_file = cluster.document(), cluster.folder / "own.run.json"
    (cluster.folder / "own.py").write_text(SUMS)
    python = torch_alone(cluster.folder / "own")
    document["job"] = {
        "kind": "torchrun", "script": "own.py", "workdir": str(cluster.folder),
        "python": str(python),
    }  # fmt: skip
    del document["solve"], document["network"]["sharing"]
    plan = str(cluster.plan(document, "own"))
    done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
    assert done.code == 0, done.told
    require_that_sums_used_every_nic(done.output, read_report(report_file), ours=False)


@pytest.mark.thorough
def test_a_rail_that_is_unplugged_ends_a_script_and_is_named(
    cluster: TestCluster, untouched: None
) -> None:
    unplugged = list[float]()
    cable = ["ip", "-n", f"pw-{cluster.name}-rail-b", "link", "set", "port1"]

    def unplug(process: Process) -> None:
        subprocess.run([*cable, "down"], check=True)
        unplugged.append(time.monotonic())

    try:
        plan = cluster.script_plan("unplugged", "--steps", "100000", "--width", "128")
        done = cluster.run("apply", plan, "--yes", on_line=once("step 3:", unplug))
    finally:
        subprocess.run([*cable, "up"], check=True)
    assert done.code == 7 and "rail b has carried nothing from pw-nic1 to 10." in done.output, (
        done.told
    )
    assert time.monotonic() - unplugged[0] < 120
    assert cluster.ranks() == []
