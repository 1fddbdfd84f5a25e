"""Item 8: the learned engines against one device and as many random placements; their ablations and
curves, and their policies on graphs on which they were not trained.

A training is kept with its curve and policy under what decides it, so that a run can be taken up.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.engine.measured import CACHE, sources_digest
from benchmarks.engine.setting import GIGABITS, Case, captured_file, cluster, published_cases
from benchmarks.table import Table, milliseconds
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.reassignment import Reassignment
from placewire.optimizer.published.learned import hsdag, placeto
from placewire.optimizer.published.learned.curve import draw_curve
from placewire.optimizer.published.learned.settings import Feature, HsdagSettings
from placewire.optimizer.published.learned.trials import Episode, Trials
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path
from placewire.optimizer.reductions.chain import reduce_by_name

CAPTURES = ("alexnet",)
PUBLISHED = ("GoogLeNet", "throughput_LayerGraphs_bert24_training")
ABLATIONS: tuple[tuple[Feature, ...], ...] = ((), ("structure",), ("shape",), ("position",))
# The placements of a training: HSDAG's 100 episodes of 20.
MOVES = 2_000
# With so much patience it never ends early, and tries all of them.
NEVER_UPDATED = HsdagSettings(k_epochs=0, patience=MOVES)
# So long that no training ends by the clock.
LIMIT_SECONDS = 7_200.0
SEED = 0


@dataclass(frozen=True)
class Trained:
    """step_seconds: that of the best placement, on the graph as given; tried: the number of
    placements tried."""

    step_seconds: float
    tried: int
    curve: tuple[Episode, ...]
    policy: Path


def tables(pictures: Path | None) -> Iterator[Table]:
    chosen = [Case(name, captured_file(name), cluster(GIGABITS)) for name in CAPTURES]
    chosen += [case for case in published_cases() if case.name in PUBLISHED]
    yield _trained_table(chosen, pictures)
    yield _unseen_table(chosen)


def _trained_table(chosen: Sequence[Case], pictures: Path | None) -> Table:
    rows: list[list[str]] = []
    drawn_curves = []
    for case in chosen:
        problem, one = _alone(case)
        found = dict(_trainings(case, problem))
        most = max(trained.tried for trained in found.values())
        drawn = best_of_random(problem, most)
        rows.append([f"{_short(case)} ({problem.graph.operator_count})", *[""] * 6])
        rows.append(["  one device", _ms(one), *["-"] * 5])
        rows.append(
            ["  random, the best", _ms(drawn), _ratio(drawn, one), "-", str(most), "-", "-"]
        )
        rows += [_row(name, trained, one, drawn) for name, trained in found.items()]
        if pictures is not None:
            name = f"engine-learned-{_short(case)}"
            curves: dict[str, Sequence[Episode]]
            curves = {engine: found[engine].curve for engine in ("hsdag", "placeto")}
            draw_curve(curves, pictures / f"{name}.png")
            drawn_curves.append(f"![{name}]({name}.png)")
    return Table(
        title="8. Learned engines, trained on the graph that they place",
        columns=("graph, method", "step ms", "/one", "/random", "placements", "means ms", "s"),
        rows=rows,
        notes=(
            f"strict, seed {SEED}, at most {MOVES} placements in training; training ends early "
            "after 30 episodes without gain. placements: all that were tried; random: the best of "
            "as many as the longest training tried, co-location groups together. means: of the "
            "placements of the first and of the last episode. never updated: the policy as it was "
            "drawn, to the end, so that only its groups differ from random. s: training, its "
            "simulations included, on one core in the idle class of a busy machine.",
            *drawn_curves,
        ),
    )


def _trainings(case: Case, problem: Problem) -> Iterator[tuple[str, Trained]]:
    yield "hsdag never updated", trained_on(case, problem, "hsdag", updates=False)
    for without in ABLATIONS:
        name = " ".join(["hsdag", *(f"without {feature}" for feature in without)])
        yield name, trained_on(case, problem, "hsdag", without)
    yield "placeto", trained_on(case, problem, "placeto")


def _row(name: str, trained: Trained, one: float, drawn: float) -> list[str]:
    step, curve = trained.step_seconds, trained.curve
    return [
        f"  {name}", _ms(step), _ratio(step, one), _ratio(step, drawn), str(trained.tried),
        f"{_ms(curve[0].mean_step_seconds)} -> {_ms(curve[-1].mean_step_seconds)}",
        f"{curve[-1].wall_seconds:.0f}",
    ]  # fmt: skip


def _alone(case: Case) -> tuple[Problem, float]:
    """The case's problem, and the step on its best single device, inf where none holds the
    graph."""
    problem = Problem(load_graph(case.file), case.cluster)
    alone = best_single(problem)
    return problem, math.inf if alone is None else alone[1]


def _unseen_table(chosen: Sequence[Case]) -> Table:
    """Needs cases whose clusters have equally many devices."""
    rows = []
    for engine in ("hsdag", "placeto"):
        for case in chosen:
            problem, one = _alone(case)
            for source in chosen:
                begun = trained_on(source, Problem(load_graph(source.file), source.cluster), engine)
                settings = SolveSettings(moves=0, options={"policy": begun.policy})
                trials, step = _run(engine, problem, settings)
                drawn = best_of_random(problem, trials.count)
                where = "itself" if source is case else _short(source)
                rows.append(
                    [f"{_short(case)}, {engine} from {where}", _ms(step), _ratio(step, one),
                     _ratio(step, drawn), str(trials.count)]
                )  # fmt: skip
    return Table(
        title="8. The policies applied to graphs without training",
        columns=("graph, policy", "step ms", "/one", "/random", "placements"),
        rows=rows,
        notes=(
            "The policy's likeliest devices, no exploring. random: the best of as many. Placeto "
            "begins on one device and is never worse.",
        ),
    )


def best_of_random(problem: Problem, count: int) -> float:
    """Seconds of the shortest step among so many random placements; inf where none fits."""
    search, generator = Reassignment(problem, by_remaining_path), np.random.default_rng(SEED)
    found = (search.cost(search.random(generator)) for _ in range(count))
    return min((one.cost for one in found if one.excess == 0.0), default=math.inf)


def trained_on(
    case: Case,
    problem: Problem,
    engine: str,
    without: tuple[Feature, ...] = (),
    *,
    updates: bool = True,
) -> Trained:
    """The training of an engine, as kept or made now. updates: False for a policy that is never
    trained, which shows what grouping does without learning."""
    also = [] if updates else [str(NEVER_UPDATED)]
    decides = [case.file.name, case.cluster.model_dump_json(), engine, *without, str(MOVES)]
    text = "\n".join([*decides, sources_digest(), *also])
    key = hashlib.sha256(text.encode()).hexdigest()[:20]
    kept, policy = CACHE / f"{key}.learned.json", CACHE / f"{key}.policy.npz"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        settings = SolveSettings(
            time_limit_seconds=LIMIT_SECONDS, seed=SEED, moves=MOVES,
            options={"save_policy": policy, "without": without},
        )  # fmt: skip
        trials, step = _run(engine, problem, settings, updates=updates)
        curve = [asdict(episode) for episode in trials.curve]
        row = {"step_seconds": step, "tried": trials.count, "curve": curve}
        kept.write_text(json.dumps(row))
    row = json.loads(kept.read_text())
    episodes = tuple(Episode(**episode) for episode in row["curve"])
    return Trained(row["step_seconds"], row["tried"], episodes, policy)


def _run(
    engine: str, problem: Problem, settings: SolveSettings, *, updates: bool = True
) -> tuple[Trials, float]:
    """Runs an engine after its own reduction; returns its trials, and the step of the best
    placement on the graph as given, inf where it does not fit."""
    if engine == "hsdag":
        table_4 = HsdagSettings() if updates else NEVER_UPDATED
        trials, undo = hsdag.train(problem, settings, None, table_4), None
    else:
        small, undo, _ = reduce_by_name(problem, "placeto")
        trials = placeto.train(small, settings)
    best = trials.best
    assert best is not None
    device = best.device if undo is None else undo(best.device, best.priority)[0]
    found = Reassignment(problem, by_remaining_path).cost(device)
    return trials, found.cost if found.excess == 0.0 else math.inf


def _short(case: Case) -> str:
    return case.name.removeprefix("throughput_").removesuffix("_training").split("_")[-1]


def _ms(seconds: float) -> str:
    return milliseconds(seconds) if math.isfinite(seconds) else "-"


def _ratio(step: float, other: float) -> str:
    return f"{step / other:.3f}" if math.isfinite(step) and math.isfinite(other) else "-"
