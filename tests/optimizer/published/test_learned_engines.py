"""The learned engines: valid placements, seeds, policy files, and the end of training."""

from __future__ import annotations

import csv
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewire.optimizer.check.check import check
from placewire.optimizer.cli import main
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import EngineRefusedError
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.learned import colocrl, hrl, hsdag, placeto, recurrent
from placewire.optimizer.published.learned.nodes import units
from placewire.optimizer.published.learned.placeto_network import before_and_behind, pools_of
from placewire.optimizer.published.learned.policy_file import (
    PolicyFile,
    PolicyFileError,
    load_policy,
    save_policy,
)
from placewire.optimizer.published.learned.settings import HsdagSettings, PlacetoSettings
from tests.optimizer.cases import cluster, graph, layered
from tests.optimizer.problems import drawn, problems
from tests.optimizer.published.published_cases import alike

# Those whose policies can be kept, and all.
ENGINES = ("hsdag", "placeto")
LEARNED = (*ENGINES, "colocrl", "hrl")
QUICK = SolveSettings(gap=0.0, moves=40, seed=3, time_limit_seconds=600.0)
LAYERED = Problem(layered(3, 3), cluster(3, (8e7, 8e7), latency=1e-4))
TIGHT = st.sampled_from([100_000, 200_000, 10**9])


def trained(engine, problem, settings=QUICK, **changes):
    if engine == "hsdag":
        return hsdag.train(problem, settings, None, HsdagSettings(**changes))
    if engine == "placeto":
        return placeto.train(problem, settings, None, PlacetoSettings(**changes))
    of = colocrl.SETTINGS if engine == "colocrl" else replace(hrl.SETTINGS, groups=8)
    return recurrent.train(engine, replace(of, **changes), problem, settings)


# --- placements -----------------------------------------------------------------------------------


@pytest.mark.hypothesis
@pytest.mark.parametrize("engine", LEARNED)
def test_every_answer_passes_the_check(engine):
    """Over unlike devices, links, every model, sharing and backend, co-location groups, operators
    that some devices cannot run, and tight memories: an engine's answer is valid, or it refuses."""
    gave, refused = [], []

    @drawn(10, always=True)
    @given(problems(largest=8, servers=3, memory=TIGHT))
    def answers(problem):
        try:
            placement = place(problem, engine, replace(QUICK, moves=6, seed=1))
        except (InfeasibleError, EngineRefusedError) as error:
            refused.append(str(error))
            return
        assert check(problem.graph, placement) == ()
        assert placement.engine == engine
        gave.append(placement)

    answers()
    assert len(gave) > len(refused), refused


@pytest.mark.parametrize("engine", LEARNED)
def test_memory_spreads_what_no_device_can_hold(engine):
    rows = {f"o{k}": 1.0 for k in range(4)}
    edges = {(f"o{k}", f"o{k + 1}"): 0.001 for k in range(3)}
    problem = alike(rows, edges, 2, weight_bytes=dict.fromkeys(rows, 10**6), memory=2_500_000)
    assert best_single(problem) is None
    assert len(place(problem, engine, QUICK).devices_used) == 2
    with pytest.raises(InfeasibleError):
        place(alike(rows, edges, 2, weight_bytes=dict.fromkeys(rows, 10), memory=19), engine, QUICK)


@pytest.mark.parametrize("engine", LEARNED)
def test_training_finds_independent_branches(engine):
    """Six operators without an edge on three devices: 6 s on one, 2 at best."""
    problem = alike({f"o{k}": 1.0 for k in range(6)}, {}, 3)
    trials = trained(engine, problem, replace(QUICK, moves=150))
    assert trials.best is not None and trials.best.cost <= 3.0


def test_hsdag_learns_to_stay_on_one_device_where_sending_is_dear():
    """Each transfer takes as long as ten operators: the mean step of the placements falls."""
    names = [f"o{k}" for k in range(12)]
    # Operators have two readers each, so that no chain becomes one node beforehand.
    edges = {(a, b): 10.0 for k, a in enumerate(names) for b in names[k + 1 : k + 3]}
    problem = alike(dict.fromkeys(names, 1.0), edges, 2)
    trials = trained(
        "hsdag", problem, replace(QUICK, moves=400), learning_rate=3e-3, hidden_channel=32
    )
    assert trials.curve[-1].mean_step_seconds < 0.6 * trials.curve[0].mean_step_seconds


@pytest.mark.parametrize("engine", LEARNED)
def test_the_seed_decides(engine):
    one, same = (place(LAYERED, engine, QUICK) for _ in range(2))
    assert one.operators == same.operators and one.order == same.order
    first, again, other = (
        [row.mean_step_seconds for row in trained(engine, LAYERED, replace(QUICK, seed=seed)).curve]
        for seed in (3, 3, 4)
    )
    assert first == again != other


# --- ends of training -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", LEARNED)
def test_moves_are_the_placements_to_train_with(engine):
    for moves in (0, 1, 30):
        trials = trained(engine, LAYERED, replace(QUICK, moves=moves))
        assert trials.trained == moves
        assert bool(trials.curve) == bool(moves)


@pytest.mark.parametrize("engine", LEARNED)
def test_training_ends_early_where_nothing_gets_better(engine):
    """Two operators: the best is found in the first episode or two, and nothing is left to gain."""
    problem = alike({"a": 1.0, "b": 1.0}, {}, 2)
    changes = {"patience": 3, "max_episodes": 200}
    trials = trained(engine, problem, replace(QUICK, moves=None), **changes)
    assert trials.best is not None and trials.best.cost == pytest.approx(1.0)
    assert 3 <= len(trials.curve) < 150


@pytest.mark.parametrize("engine", LEARNED)
def test_training_stops_when_the_time_is_over(engine):
    problem = Problem(layered(12, 4), cluster(4, (8e6,), latency=1e-3))
    trained(
        engine, problem, replace(QUICK, moves=2)
    )  # compiles the kernels and loads torch, so that the run below does not
    began = time.process_time()  # others on the machine take none of it
    placement = place(problem, engine, SolveSettings(gap=0.0, time_limit_seconds=1.0))
    assert time.process_time() - began < 10.0
    assert check(problem.graph, placement) == ()


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_saved_policy_is_the_same_policy_and_serves_another_graph(engine, tmp_path):
    """A saved policy, applied without training, gives the same placement each time, keeps its
    arrays when it is saved again, and gives a valid placement of a graph that it has not seen."""
    file = tmp_path / "policies" / "one.npz"
    said = []
    place(LAYERED, engine, replace(QUICK, options={"save_policy": file}))
    applied = replace(QUICK, moves=0, options={"policy": file})
    one, same = (
        place(LAYERED, engine, applied, progress=lambda p: said.append(p.words)) for _ in range(2)
    )
    assert one.operators == same.operators
    other = Problem(layered(4, 2), cluster(3, (8e6,)))
    assert check(other.graph, place(other, engine, applied)) == ()
    assert any(f"{engine}: the policy, trained with 40 placements of" in words for words in said)
    again = tmp_path / "two.npz"
    place(LAYERED, engine, replace(applied, options={"policy": file, "save_policy": again}))
    one_file, two = (load_policy(path, engine, 3) for path in (file, again))
    assert all((one_file.arrays[name] == two.arrays[name]).all() for name in one_file.arrays)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_is_no_policy_is_refused(engine, tmp_path):
    file = tmp_path / "policy.npz"
    learning = replace(QUICK, moves=0, options={"policy": file})

    def refusal():
        with pytest.raises(PolicyFileError) as error:
            place(LAYERED, engine, learning)
        assert str(file) in str(error.value)
        return str(error.value)

    for held in (b"", b"nothing of ours", b"PK\x03\x04 nor this"):
        file.write_bytes(held)
        assert "is no trained policy" in refusal()
    np.savez(file, some=np.zeros(3))
    assert "is no trained policy" in refusal()
    np.savez(file, header=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "is no trained policy" in refusal()
    file.unlink()
    with pytest.raises(OSError):
        place(LAYERED, engine, learning)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_policy_of_another_kind_is_refused_in_words(engine, tmp_path):
    file = tmp_path / "policy.npz"
    place(LAYERED, engine, replace(QUICK, options={"save_policy": file}))
    applied = replace(QUICK, moves=0, options={"policy": file})
    wider = Problem(LAYERED.graph, cluster(4, (8e7, 8e7), latency=1e-4))
    with pytest.raises(PolicyFileError, match="for 3 devices, and the cluster has 4"):
        place(wider, engine, applied)
    other = next(name for name in ENGINES if name != engine)
    with pytest.raises(PolicyFileError, match=f"is a policy of engine {engine}, and {other}"):
        place(LAYERED, other, applied)
    held = load_policy(file, engine, 3)
    name, array = next(iter(held.arrays.items()))
    for changed in ({name: array[:-1]}, {name: np.full_like(array, np.nan)}):
        save_policy(replace(held, arrays={**held.arrays, **changed}), file)
        with pytest.raises(PolicyFileError, match=f"array {name} has"):
            place(LAYERED, engine, applied)
    save_policy(replace(held, arrays={k: a for k, a in held.arrays.items() if k != name}), file)
    with pytest.raises(PolicyFileError, match="was changed, or cut short"):
        place(LAYERED, engine, applied)


def test_a_header_that_asks_for_too_much_is_refused(tmp_path):
    file = tmp_path / "policy.npz"
    place(LAYERED, "hsdag", replace(QUICK, options={"save_policy": file}))
    held = load_policy(file, "hsdag", 3)
    for facts in ({}, {"vocabulary": {**held.facts["vocabulary"], "extents": 10**12}}):
        save_policy(replace(held, facts=facts), file)
        with pytest.raises(PolicyFileError, match="is no trained policy"):
            place(LAYERED, "hsdag", replace(QUICK, options={"policy": file}))


def test_another_version_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "policy.npz"
    with monkeypatch.context() as patch:
        patch.setattr("placewire.optimizer.published.learned.policy_file.VERSION", 2)
        save_policy(PolicyFile("hsdag", 3, {}, "trained", {}), file)
    with pytest.raises(PolicyFileError, match="of version 2, and this release reads version 1"):
        load_policy(file, "hsdag", 3)


# --- Placeto's view -------------------------------------------------------------------------------


def test_what_lies_before_behind_and_beside():
    """a -> {b, c} -> d, and e apart."""
    made = graph(
        dict.fromkeys("abcde", 1.0), [("a", ["b", "c"], 8), ("b", ["d"], 8), ("c", ["d"], 8)]
    )
    nodes = units(Problem(made, cluster(2)))
    before = before_and_behind(made, nodes)
    assert [np.flatnonzero(row).tolist() for row in before] == [[], [0], [0], [0, 1, 2], []]
    pools = pools_of(before)
    assert pools[1].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0.5, 0, 0.5]]


def test_placeto_is_never_worse_than_one_device():
    alone = best_single(LAYERED)
    assert alone is not None
    trials = trained("placeto", LAYERED, replace(QUICK, moves=3))
    assert trials.best is not None and trials.best.cost <= alone[1] * (1 + 1e-9)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path):
    """command(*options) solves a small graph with these options, and returns the exit code."""
    save_graph(graph({"A": 0.1, "B": 0.1}, [("A", ["B"], 100)]), tmp_path / "graph.json")
    (tmp_path / "cluster.json").write_text(cluster(2).model_dump_json())
    files = ["solve", str(tmp_path / "graph.json"), "--cluster", str(tmp_path / "cluster.json")]
    return lambda *options: main([*files, *map(str, options)])


def test_the_command_trains_saves_and_applies(command, tmp_path, capsys):
    policy, rows, picture = tmp_path / "p.npz", tmp_path / "c.csv", tmp_path / "c.png"
    learn = ("--engine", "hsdag", "--moves", 40)
    assert command(*learn, "--save-policy", policy, "--curve", rows, "--without", "shape") == 0
    assert "2 episodes, 40 placements tried" in capsys.readouterr().err
    with rows.open() as file:
        curve = list(csv.DictReader(file))
    assert [row["placements"] for row in curve] == ["20", "40"]
    assert float(curve[-1]["best_so_far_seconds"]) > 0
    assert command("--engine", "hsdag", "--moves", 0, "--policy", policy) == 0
    assert "without training; 0 of 2 operators have types that" in capsys.readouterr().err
    assert command(*learn, "--curve", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    policy.write_bytes(b"something else")
    assert command("--engine", "hsdag", "--policy", policy) == 3
    assert "is no trained policy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "heft", "--policy", "p"), "--policy is an option of --engine hsdag, placeto"),
        (("--engine", "placeto", "--without", "shape"), "--without is an option of --engine hsdag"),
        (("--engine", "hrl", "--policy", "p"), "--policy is an option of --engine hsdag, placeto"),
        (("--engine", "hsdag", "--curve", "c.txt"), "ends in neither .csv nor .png"),
        (("--engine", "hsdag", "--curve", "c.csv", "--sharing", "auto"), "needs a single sharing"),
    ],
)
def test_options_without_effect_are_a_usage_error(command, capsys, options, words):
    with pytest.raises(SystemExit) as ended:
        command(*options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_trained_policy_has_its_features_already(command, capsys):
    assert command("--engine", "hsdag", "--policy", "p", "--without", "shape") == 3
    assert "has its features already" in capsys.readouterr().err
