"""The list of the papers' tables and figures: is it whole, and does all that it names exist?"""

from __future__ import annotations

import re

import pytest

from benchmarks.report import ROOT
from benchmarks.reproduction.__main__ import PAGE
from benchmarks.reproduction.document import COLUMNS, document
from benchmarks.reproduction.entries import ENTRIES, ILLUSTRATIONS
from benchmarks.reproduction.entry import Entry, FromPreset, FromReport, FromTests, Never
from benchmarks.reproduction.findings import FILE, exact, load
from benchmarks.reproduction.keys import preset_of
from benchmarks.reproduction.rules import AtMost
from benchmarks.reproduction.sources import reported
from benchmarks.reproduction.verdicts import verdict_of
from placewire.optimizer.published.comparison.presets import PRESETS, load_preset
from tests.documents import anchors

# All tables and figures that the papers have.
PAPERS = {
    "Thesis": (
        "figure 1.1", "figure 1.2", "figure 3.1", "figure 3.2",
        *(f"figure 4.{k}" for k in range(1, 9)), *(f"figure 5.{k}" for k in range(1, 5)),
        "table 3.1", "table 5.1", "table 5.2",
    ),
    "QuickP": (*(f"figure {k}" for k in range(1, 7)), "table I"),
    "Celeritas": (*(f"figure {k}" for k in range(1, 7)), *(f"table {k}" for k in range(1, 6))),
    "HSDAG": ("figure 1", "figure 2", *(f"table {k}" for k in range(1, 5))),
    "Moirai": (
        *(f"figure {k}" for k in range(1, 11)), "table I", "table II", "table III", "table IV",
        "table V",
    ),
}  # fmt: skip

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def named(places: str) -> set[str]:
    """`figures 4.2, 4.6 to 4.8` names four figures."""
    kind, _, numbers = places.partition(" ")
    found = set()
    for part in re.split(r", | and ", numbers):
        first, _, last = part.partition(" to ")
        if not last:
            found.add(f"{kind.removesuffix('s')} {first}")
            continue
        head, _, low = first.rpartition(".")
        for k in range(int(low), int(last.rpartition(".")[2]) + 1):
            found.add(f"{kind.removesuffix('s')} {head}.{k}" if head else f"figure {k}")
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_of_a_paper_is_listed_once(paper: str) -> None:
    places = [entry.place for entry in ENTRIES if entry.paper == paper]
    places += [place for of, place, _ in ILLUSTRATIONS if of == paper]
    listed = [one for place in places for one in named(place)]
    assert sorted(listed) == sorted(PAPERS[paper])


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_an_entry(name: str) -> None:
    """But for table 5 of Celeritas, whose preset only refuses: a report has its figures."""
    if name == "celeritas-table-5":
        assert load_preset(name).refusal
        return
    assert FromPreset(name) in [entry.source for entry in ENTRIES], (
        f"add an entry for preset {name} to benchmarks/reproduction, and write the page again by "
        "`python -m benchmarks.reproduction --no-runs`"
    )


def test_names_and_anchors_are_each_entrys_own() -> None:
    for names in ({entry.name for entry in ENTRIES}, {entry.anchor for entry in ENTRIES}):
        assert len(names) == len(ENTRIES)


@each_entry
def test_an_entry_claims_something_or_says_why_it_cannot_be_asked(entry: Entry) -> None:
    assert bool(entry.claims) != isinstance(entry.source, Never)
    for claim in entry.claims:
        assert claim.rules and claim.paper and claim.says.endswith((".", ")"))
        assert claim.holds != "on average" or len({type(rule) for rule in claim.rules}) == 1


# Words that claim a difference; those that only deny one, or say how large it is, do not.
DIFFERS = re.compile(r"\b(shorter|longer|less|grows|smaller|soonest|better|least time)\b")
DENIES = re.compile(r"\b(never|not|at most|up to|\d+(\.\d+)? s longer)\b")


@each_entry
def test_a_claim_of_a_difference_does_not_hold_where_there_is_none(entry: Entry) -> None:
    for claim in entry.claims:
        if not DIFFERS.search(claim.says) or DENIES.search(claim.says):
            continue
        for rule in claim.rules:
            if isinstance(rule, AtMost):
                alike = {name: exact("m", name, "1", 1.0) for name in rule.figures}
                assert rule.judged(alike).holds is False, claim.says


@pytest.mark.parametrize(
    ("celeritas", "dfs_topo", "m_topo", "told"),
    [
        (9.0, 28.0, 10.0, "holds (2 of 2)"), (9.0, 26.0, 90.0, "does not hold (1 of 2)"),
        (9.0, 90.0, 9.0, "does not hold (1 of 2)"),
    ],
)  # fmt: skip
def test_celeritas_claims_a_third_of_dfs_topo_alone(
    celeritas: float, dfs_topo: float, m_topo: float, told: str
) -> None:
    (entry,) = (one for one in ENTRIES if one.name == "celeritas-figure-6")
    (claim,) = (one for one in entry.claims if "a third" in one.says)
    minutes = {"Celeritas": celeritas, "DFS-TOPO": dfs_topo, "m-TOPO": m_topo}
    found = {f"{name}, min": exact("m", name, "1", took) for name, took in minutes.items()}
    assert verdict_of(claim, {"Transformer": found}).told == told


def test_hsdags_claims_against_the_cpu_cannot_be_asked_where_the_gpu_keeps_them() -> None:
    (entry,) = (one for one in ENTRIES if one.name == "hsdag-table-2")
    seconds = {"HSDAG, s": 1.0, "GPU-only, s": 1.0, "CPU-only, s": 9.0}
    found = {what: exact("m", what, "1", took) for what, took in seconds.items()}
    against = [one for one in entry.claims if "than on the CPU" in one.says]
    assert len(against) == 3
    for claim in against:
        (model,) = claim.models
        assert verdict_of(claim, {model: found}).kind == "cannot be asked here"


@each_entry
def test_figures_that_rules_read_are_there(entry: Entry) -> None:
    read = {name for claim in entry.claims for rule in claim.rules for name in rule.figures}
    preset = preset_of(entry)
    if preset is not None:
        assert read <= {figure.what for figure in preset.figures}
        assert {model for claim in entry.claims for model in claim.models} <= set(preset.models)
    elif isinstance(entry.source, FromTests):
        text = "\n".join((ROOT / file).read_text() for file in entry.source.files)
        for name in read:
            assert f"def test_{name}(" in text, name
    elif isinstance(entry.source, FromReport):
        found = {one.what for one in reported(entry.source, ROOT).findings}
        assert read | set(entry.source.times or ()) <= found


@each_entry
def test_each_entry_has_its_place_on_the_page(entry: Entry) -> None:
    assert entry.anchor in anchors(PAGE)


def test_the_page_is_what_the_list_and_the_findings_say() -> None:
    """After a change of either, or of sources from which current figures came:
    `python -m benchmarks.reproduction --no-runs`."""
    text = PAGE.read_text()
    assert text == document(ENTRIES, ILLUSTRATIONS, load(FILE))
    assert max(map(len, text.splitlines())) <= COLUMNS
