"""The list of engines: complete, true, and light; each engine on small problems of every kind."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.graphs import published, workloads_folder
from placewire.optimizer.check.check import check
from placewire.optimizer.cli import main as optimizer_main
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import EngineRefusedError, OutOfTimeError
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from tests.optimizer.cases import cluster, graph, layered
from tests.optimizer.problems import drawn, problems

MOST_OPERATORS = 700
# Those whose module is an engine of its own; programs are tested in test_formulations and
# test_moirai, the house's own in test_engines.
METHODS = (
    "random", "order-place", "adjusting-placement", "m-topo", "m-etf", "m-sct", "getf", "heft",
    "peft", "linear-clustering", "dsc", "metis", "local-search", "mcmc", "flexflow",
)  # fmt: skip
# What learns is tested in test_learned_engines, and here as far as all are alike.
LEARNED = ("hsdag", "placeto", "colocrl", "hrl")
# Engines whose descriptions stand in the module that solves.
PLAIN = ("auto", "single", *METHODS)
TIGHT = st.sampled_from([100_000, 200_000, 10**9])


def test_every_name_has_its_facts():
    for name in ENGINES:
        engine = ENGINES.load(name)
        assert all((engine.summary, engine.decides, engine.sees, engine.memory)), name
        assert bool(engine.paper) == (name not in {"auto", "single"}), name
    # What the papers compare with is there by name.
    assert set(METHODS) < set(ENGINES)


def test_the_command_lists_every_engine_with_its_paper(capsys):
    assert optimizer_main(["engines"]) == 0
    text = capsys.readouterr().out
    assert optimizer_main(["engines", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["methods"]
    assert [row["name"] for row in listed] == list(ENGINES)
    for row in listed:
        assert f"\n{row['name']} " in "\n" + text
        assert row["paper"] in text and row["memory"] in text


@pytest.mark.parametrize(
    "name",
    [
        *("single", "getf", "auto"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("heft", "m-etf", "mcmc")),
    ],
)
def test_an_engine_loads_nothing_of_the_others(name, tmp_path):
    """In a process of its own: of the engines' modules only the asked one's, and those it uses."""
    save_graph(graph({"A": 0.1, "B": 0.1}, [("A", ["B"], 100)]), tmp_path / "graph.json")
    (tmp_path / "cluster.json").write_text(cluster(2).model_dump_json())
    program = (
        "import sys\n"
        "from placewire.optimizer.cli import main\n"
        f"main(['solve', 'graph.json', '--cluster', 'cluster.json', '--engine', '{name}',"
        " '--sharing', 'unshaped', '--moves', '5'])\n"
        "ours = [m for m in sys.modules if m.startswith('placewire.optimizer.')]\n"
        "print('LOADED', *sorted(ours))\n"
        "heavy = ('ortools', 'scipy.optimize', 'pymetis', 'torch', 'networkx', 'gurobipy')\n"
        "print('HEAVY', *[m for m in heavy if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: set(line.split()[1:]) for line in done.stdout.splitlines() if line}
    solves = {other: ENGINES.load(other).solve.__module__ for other in PLAIN}
    one_device = solves["single"]  # is always shown beside
    assert {solves[name]} <= set(solves.values()) & lines["LOADED"] <= {solves[name], one_device}
    assert lines["HEAVY"] == set()


def test_torch_is_loaded_for_what_learns_alone():
    """The list and the command know the learned engines without it."""
    program = (
        "import sys\n"
        "import placewire.optimizer.engines.place\n"
        "from placewire.optimizer.engines.engine import ENGINES\n"
        "import placewire.optimizer.commands.solve\n"
        "assert 'torch' not in sys.modules\n"
        "assert ENGINES.load('hsdag').options\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.hypothesis
@pytest.mark.parametrize("engine", METHODS)
def test_every_answer_of_a_published_method_passes_the_check(engine):
    """Unlike devices, links, every model, sharing and backend, memories that bind now and then: an
    answer holds, and there is one for a third at least of what the method takes."""
    gave, refused = [], []

    @drawn(25, always=True)
    @given(problems(largest=8, servers=3, memory=TIGHT))
    def answers(problem):
        try:
            # Celeritas' own fusion leaves one operator of so small a graph, which sends nothing.
            reduction = "none" if engine == "adjusting-placement" else "auto"
            settings = SolveSettings(gap=0.0, moves=40, seed=1)
            placement = place(problem, engine, settings, reduction)
        except (InfeasibleError, EngineRefusedError) as error:
            refused.append(str(error))
            return
        assert check(problem.graph, placement) == ()
        assert placement.engine == engine
        gave.append(placement)

    answers()
    # METIS assumes this, and some of these devices cannot.
    otherwise = [why for why in refused if "assumes that every device can run" not in why]
    assert 2 * len(gave) > len(otherwise), otherwise
    # These leave a device seldom, or refuse most of these problems.
    seldom = ("order-place", "mcmc", "metis")
    assert any(placement.messages for placement in gave) or engine in seldom


@pytest.mark.parametrize("engine", (*METHODS, *LEARNED))
def test_a_graph_without_operators_is_placed(engine):
    placement = place(Problem(graph({}, []), cluster(2)), engine, SolveSettings(moves=5))
    assert placement.operators == {} and placement.step_seconds == 0.0


@pytest.mark.parametrize("engine", (*METHODS, *LEARNED))
def test_no_time_at_all_is_a_placement_or_a_reason(engine):
    problem = Problem(layered(20, 4), cluster(4, (8e6,), latency=1e-3))
    try:
        placement = place(problem, engine, SolveSettings(time_limit_seconds=1e-6))
    except (OutOfTimeError, InfeasibleError) as error:
        assert engine in str(error)
    else:
        assert check(problem.graph, placement) == ()


@functools.cache
def smaller_graphs():
    return [one for one in published() if one.graph.operator_count <= MOST_OPERATORS]


@pytest.mark.thorough
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "auto"])
def test_every_engine_on_the_smaller_published_graphs(engine):
    """A placement that passes the check, or a refusal with its reason. `make bench-methods` takes
    all of them, gives each engine more time, and looks at the times."""
    if not workloads_folder().is_dir():
        pytest.skip("the published graphs are not beside the project")
    assert len(smaller_graphs()) >= 6
    for one in smaller_graphs():
        problem = Problem(one.graph, one.cluster)
        try:
            placement = place(problem, engine, SolveSettings(gap=0.05, time_limit_seconds=1.0))
        except (InfeasibleError, EngineRefusedError, OutOfTimeError) as error:
            assert len(str(error)) > 40, one.name
        else:
            assert check(problem.graph, placement) == (), one.name
