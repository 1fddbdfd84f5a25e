"""docs/reproduction.md, written from the list and from what the runs found."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.reproduction.beside_auto import beside_auto
from benchmarks.reproduction.entry import (
    Claim,
    Entry,
    FromOwn,
    FromPreset,
    FromReport,
    FromTests,
    Illustrations,
    Never,
)
from benchmarks.reproduction.findings import Finding, Run, Runs, by_model
from benchmarks.reproduction.running import preset_of
from benchmarks.reproduction.verdicts import KINDS, NEVER, ByModel, Verdict, verdict_of
from placewire.optimizer.published.comparison.presets.preset import Preset, Reduced, Solved
from placewire.optimizer.published.comparison.reasons import Reasons
from placewire.optimizer.published.comparison.reproducing import NO_FIGURE

COLUMNS = 100
_QUANTIFIERS = {
    "always": "in every case", "once": "in one case at least", "on average": "on average",
}  # fmt: skip
_HEAD = """\
# The papers, reproduced

For whoever wants to know whether what the five papers claim holds in Placewire. `make reproduce`
writes this page, from the list in `benchmarks/reproduction` and from what its runs found
(`found.json` there). Each table and figure has what the paper claims and the rule that decides it;
the paper's number stands beside ours, and how the settings differ is said below.

A verdict is computed from the numbers, over models and settings (the cases):

| verdict | meaning |
| --- | --- |
| holds | the rule holds, as often as the paper claims it |
| does not hold | it does not, in our setting, and more time cannot change that |
| out of time | a time limit ended a search; more time could decide it, so nothing failed |
| not run yet | the command that stands with it has not been run |
| cannot be asked here | a reason is given |

`>= 10 s` and `<= 5 ms` are of searches that their time limit ended. Steps of programs are their own
(`own`), those of other methods are simulated. A step of `auto` counts against a rival only if that
ended by itself. Times that were measured beside other programs are upper limits: a claim about
them is decided only if quiet could not change it, and is `not run undisturbed` otherwise.
"""


def document(entries: Sequence[Entry], illustrations: Illustrations, runs: Runs) -> str:
    pages = [_Page(entry, runs) for entry in entries]
    parts = [_HEAD, *_summary(pages), *_uncounted(illustrations)]
    for page in pages:
        parts += page.lines()
    return "\n".join(parts).rstrip("\n") + "\n"


class _Page:
    """A table or figure of a paper."""

    def __init__(self, entry: Entry, runs: Runs) -> None:
        self.entry = entry
        self.preset = preset_of(entry)
        self.runs = [run for run in runs.values() if run.source == entry.name]
        models = () if self.preset is None else tuple(self.preset.models)
        found = by_model(runs, entry.name, models, _times(self.preset))
        # Without a run there is one case that waits for it, if no model is known.
        self.found: ByModel = found or {"-": {}}
        self.verdicts = [(claim, verdict_of(claim, self.found)) for claim in entry.claims]
        self.reasons = Reasons()

    def lines(self) -> list[str]:
        source = self.entry.source
        lines = [f"## {self.entry.heading}", "", *_wrapped(f"{_capital(self.entry.shows)}."), ""]
        if isinstance(source, Never):
            return [*lines, *_wrapped(f"It cannot be asked here: {source.why}."), ""]
        lines += self._claims()
        if self.preset is not None:
            lines += self._figures(self.preset)
        else:
            lines += self._cells()
        if self.reasons.lines:
            lines += ["Why some figures are missing (like reasons are told once):", ""]
            lines += [line for one in self.reasons.lines for line in _wrapped(f"- {one}", 2)]
            lines.append("")
        differs = [*self.entry.differs, *(self.preset.differs if self.preset else ())]
        if limits := {run.limit_seconds for run in self.runs} - {None}:
            most = max(limit for limit in limits if limit is not None)
            told = f"a solve had at most {most:g} s here, even where more is named below"
            differs.insert(0, told)
        if differs:
            lines += ["How the settings differ:", ""]
            lines += [line for one in differs for line in _wrapped(f"- {one}", 2)]
            lines.append("")
        return [*lines, *self._made()]

    def _claims(self) -> list[str]:
        lines = []
        for number, (claim, _) in enumerate(self.verdicts, 1):
            text = f"{number}. {claim.says} Rule: {_rule(claim)}."
            lines += _wrapped(text, 3)
        rows = [
            (str(number), claim.paper, verdict.ours, self._told(verdict))
            for number, (claim, verdict) in enumerate(self.verdicts, 1)
        ]
        return [*lines, "", *table(("claim", "paper", "ours", "verdict"), rows), ""]

    def _told(self, verdict: Verdict) -> str:
        if verdict.kind != NEVER or not verdict.why:
            return verdict.told
        return f"{verdict.told}: ({self.reasons.number(verdict.why)})"

    def _figures(self, preset: Preset) -> list[str]:
        """Models of which nothing was run have one line each."""
        rows, waiting = [], []
        for model, found in self.found.items():
            if not found:
                waiting.append(model)
                continue
            for one in preset.figures:
                if one.model == model:
                    ours = self._cell(found[one.what]) if one.what in found else "not run yet"
                    rows.append((model, one.what, one.paper, ours))
        lines = [*table(("model", "figure", "paper", "ours"), rows), ""] if rows else []
        if waiting:
            lines += [*_wrapped(f"Not run yet: {', '.join(waiting)}."), ""]
        if told := beside_auto(preset, self.found):
            lines += [*_wrapped(told), ""]
        return lines

    def _cells(self) -> list[str]:
        """The figures that the rules read, of what is no preset."""
        read = {
            name for claim in self.entry.claims for rule in claim.rules for name in rule.figures
        }
        rows = [
            (model, what, self._cell(one))
            for model, found in self.found.items()
            for what, one in found.items()
            if what in read
        ]
        if not rows:
            return ["Not run yet.", ""]
        if all(model == "-" for model, _, _ in rows):
            return [*table(("worked example", "cases that pass"), [row[1:] for row in rows]), ""]
        return [*table(("setting", "figure", "ours"), rows), ""]

    def _cell(self, one: Finding) -> str:
        if one.ended == "clock":
            high = one.number().high
            if one.text == NO_FIGURE:
                return f"out of time ({self.reasons.number(one.why)})"
            return f"{'<=' if high < float('inf') else '>='} {one.text} (out of time)"
        if one.text == NO_FIGURE:
            return f"none ({self.reasons.number(one.why)})"
        return one.text

    def _made(self) -> list[str]:
        told = [
            f"Measured {where}{f' ({some})' if (some := ', '.join(filter(None, models))) else ''}."
            for where, models in _together(self.runs)
        ]
        lines = [*_wrapped(" ".join(told)), ""] if told else []
        return ["It is made by", "", *_as_code(command_of(self.entry, self.runs)), "", *lines]


def _times(preset: Preset | None) -> set[str]:
    """The figures that are times of a search or of a reduction."""
    return {
        one.what
        for one in (preset.figures if preset else ())
        if (isinstance(one.asked, Solved) and one.asked.figure in ("search", "solver"))
        or (isinstance(one.asked, Reduced) and one.asked.figure == "seconds")
    }


def command_of(entry: Entry, runs: Sequence[Run] = ()) -> str:
    """A command that gives the figures of ours; with a limit that all runs had."""
    source = entry.source
    limits = {run.limit_seconds for run in runs}
    limit = next(iter(limits)) if len(limits) == 1 else None
    limited = "" if limit is None else f" --time-limit {limit:g}"
    if isinstance(source, FromPreset):
        return f"optimizer compare --preset {source.name}{limited} --out compared"
    if isinstance(source, FromTests):
        return f"pytest {' '.join(source.files)} -k '{source.chosen}'"
    if isinstance(source, FromReport):
        return source.command
    assert isinstance(source, FromOwn)
    return f"python -m benchmarks.reproduction --only {entry.name}{limited}"


def _together(runs: Sequence[Run]) -> Iterable[tuple[str, list[str]]]:
    """Where and with which limit the models were run, those of the same first run together."""
    found: dict[str, list[str]] = {}
    for run in runs:
        limit = "" if run.limit_seconds is None else f", at most {run.limit_seconds:g} s a solve"
        beside = ", beside other programs" if run.disturbed else ""
        where = f"at commit {run.commit} on {run.date}, {run.machine}{limit}{beside}"
        found.setdefault(where, []).append(run.model)
    return found.items()


def _rule(claim: Claim) -> str:
    words = "; ".join(rule.words for rule in claim.rules)
    of = f" on {', '.join(claim.models)}" if claim.models else ""
    return f"{words}{of}, {_QUANTIFIERS[claim.holds]}"


def _summary(pages: Sequence[_Page]) -> list[str]:
    rows, total = [], Counter[str]()
    for page in pages:
        never = isinstance(page.entry.source, Never)
        count = Counter([NEVER] if never else [verdict.kind for _, verdict in page.verdicts])
        total += count
        cells = (str(count[kind]) if count[kind] else "" for kind in KINDS)
        rows.append((f"[{page.entry.heading}](#{page.entry.anchor})", *cells))
    rows.append(("all", *(str(total[kind]) for kind in KINDS)))
    head = ("claims of", "hold", "do not", "out of time", "not run", "cannot be asked")
    return ["## All claims", "", *table(head, rows), ""]


def _uncounted(illustrations: Illustrations) -> list[str]:
    told = "; ".join(f"{paper}, {places} ({what})" for paper, places, what in illustrations)
    return [*_wrapped(f"These claim no result: {told}."), ""]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        text, COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _as_code(command: str) -> list[str]:
    lines = textwrap.wrap(
        command, COLUMNS - 6, initial_indent="    ", subsequent_indent="        ",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
