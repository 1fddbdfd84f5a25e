"""docs/reproduction.md, written from the list and from what the runs found."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from benchmarks.report import DISTURBED
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
    Source,
)
from benchmarks.reproduction.findings import Finding, Run, Runs, by_model
from benchmarks.reproduction.head import HEAD
from benchmarks.reproduction.keys import key_of, preset_of, settings_of
from benchmarks.reproduction.rules import NOT_RUN
from benchmarks.reproduction.verdicts import KINDS, NEVER, ByModel, Verdict, verdict_of
from placewire.optimizer.published.comparison.our_figures import NO_FIGURE
from placewire.optimizer.published.comparison.presets.preset import (
    Preset,
    Reduced,
    Saved,
    Seeds,
    Solved,
)
from placewire.optimizer.published.comparison.reasons import Reasons

COLUMNS = 100
_OLDER = "older"
_TIMES = ("search", "solver", "evaluation")
_QUANTIFIERS = {
    "always": "in every case", "once": "in one case at least", "on average": "on average",
}  # fmt: skip


def document(entries: Sequence[Entry], illustrations: Illustrations, runs: Runs) -> str:
    pages = [_Page(entry, runs) for entry in entries]
    parts = [HEAD, *_summary(pages), *_uncounted(illustrations)]
    for page in pages:
        parts += page.lines()
    return "\n".join(parts).rstrip("\n") + "\n"


class _Page:
    """A table or figure of a paper."""

    def __init__(self, entry: Entry, runs: Runs) -> None:
        self.entry = entry
        self.preset = preset = preset_of(entry)
        models = () if preset is None else tuple(preset.models)
        # In the order in which they are kept, whichever was run first.
        self.runs = [
            run
            for _, run in sorted(runs.items())
            if run.source == entry.name and (preset is None) == (run.model not in models)
        ]
        settings = None if preset is None else settings_of(preset)
        if settings is not None:
            self.runs = [run for run in self.runs if _asked(run, settings)]
        self.older = {
            run.model
            for run in self.runs
            if run.is_of_unknown or run.key != key_of(entry, run.model)
        }
        found = by_model(
            self.runs, models, times=_times(entry.source, preset), older=self.older,
            settings=settings,
        )  # fmt: skip
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
        if self.entry.unasked:
            lines += ["Claimed as well, and not asked:", ""]
            lines += [*_listed(map(_sentence, self.entry.unasked)), ""]
        if self.preset is not None:
            lines += self._figures(self.preset)
        else:
            lines += self._cells()
        if self.reasons.lines:
            lines += ["Why some figures are missing (like reasons are told once):", ""]
            lines += [*_listed(self.reasons.lines), ""]
        if differs := self._differs():
            of = "How the settings differ"
            of += ", of the next run:" if self.older else ":"
            lines += [of, "", *_listed(map(_sentence, differs)), ""]
        return [*lines, *self._made()]

    def _differs(self) -> list[str]:
        current = [run for run in self.runs if run.model not in self.older]
        limited: dict[float, list[str]] = {}
        for run in current:
            if run.limit_seconds is not None and _solves(self.preset):
                limited.setdefault(run.limit_seconds, []).append(run.model)
        told = []
        for limit, models in limited.items():
            of = "" if len(models) == len(current) else f" of {', '.join(models)}"
            told.append(f"a solve{of} had at most {limit:g} s here, even where more is named below")
        if any(run.paper_times for run in current) and _solves(self.preset):
            told.append("a solve had as long as the paper's own took, where less is named below")
        return [*told, *self.entry.differs, *(self.preset.differs if self.preset else ())]

    def _claims(self) -> list[str]:
        lines = []
        for number, (claim, _) in enumerate(self.verdicts, 1):
            text = f"{number}. {claim.says} Rule: {_rule(claim)}."
            lines += _wrapped(text, 3)
        rows = [
            (str(number), claim.paper, verdict.ours, self._told(verdict))
            for number, (claim, verdict) in enumerate(self.verdicts, 1)
        ]
        lines += ["", *table(("claim", "paper", "ours", "verdict"), rows), ""]
        for number, (_, verdict) in enumerate(self.verdicts, 1):
            if verdict.without:
                named = ", ".join(verdict.without)
                lines += [*_wrapped(f"Claim {number} is decided without {named}."), ""]
        return lines

    def _told(self, verdict: Verdict) -> str:
        told = verdict.told
        if verdict.kind == NEVER and verdict.why:
            told = f"{told}: ({self.reasons.number(verdict.why)})"
        return f"{told}, older" if verdict.older else told

    def _figures(self, preset: Preset) -> list[str]:
        """Models of which nothing was run, with these settings, have one line."""
        rows, waiting = [], []
        for model, found in self.found.items():
            if not found:
                waiting.append(model)
                continue
            named = f"{model} (older)" if model in self.older else model
            rows += [
                (named, one.what, one.paper,
                 self._cell(found[one.what]) if one.what in found else NOT_RUN)
                for one in preset.figures
                if one.model == model
            ]  # fmt: skip
        lines = [*table(("model", "figure", "paper", "ours"), rows), ""] if rows else []
        if waiting:
            lines += [*_wrapped(f"Not run yet: {', '.join(waiting)}."), ""]
        # An older run may have asked something else: who was compared with whom is unknown.
        current = {model: found for model, found in self.found.items() if model not in self.older}
        if told := beside_auto(preset, current):
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
        lines = [*table(("setting", "figure", "ours"), rows), ""]
        if isinstance(self.entry.source, FromReport) and (drawn := self.entry.source.picture):
            lines += [f"![Ours of {self.entry.heading}]({drawn})", ""]
        return lines

    def _cell(self, one: Finding) -> str:
        if one.text == NO_FIGURE:
            reason = self.reasons.number(one.why)
            return f"out of time ({reason})" if one.ended == "clock" else f"none ({reason})"
        return f"{_sign(one)}{one.text} (out of time)" if one.ended == "clock" else one.text

    def _made(self) -> list[str]:
        lines = []
        for where, runs in _together(self.runs, limits=_solves(self.preset)):
            named = ", ".join(run.model for run in runs if run.model)
            older = [run for run in runs if run.model in self.older]
            told = f"Measured {where}{f' ({named})' if named else ''}."
            if older:
                of = ", ".join(run.model for run in older if run.model)
                state = "The sources have changed since"
                if any(run.is_of_unknown for run in older):
                    state = "Nobody can name the sources of these figures"
                elif isinstance(self.entry.source, FromReport):
                    state = "The report's table, or how it is read, has changed since"
                told += f" {state}{f' (older: {of})' if of and len(older) < len(runs) else ''}."
            lines += [*_wrapped(told), ""]
        current = [run for run in self.runs if run.model not in self.older]
        made = "It is made anew by" if self.older else "It is made by"
        return [made, "", *_as_code(command_of(self.entry, self.preset, current)), "", *lines]


def _asked(run: Run, settings: Mapping[tuple[str, str], str]) -> bool:
    """Whether it answers any of what is asked now."""
    return any(settings.get((one.model, one.what)) == one.setting for one in run.findings)


def _sign(one: Finding) -> str:
    """Says from which side the number of a search that the clock ended is known."""
    number = one.number()
    if number.high < inf:
        return "<= "
    return ">= " if number.low not in (0.0, -inf) else ""


def _times(source: Source, preset: Preset | None) -> set[str]:
    """The figures that are times of a search or of a reduction, or have one in them; of a report,
    those that it names."""
    if isinstance(source, FromReport):
        return set(source.times or ())
    return {
        one.what
        for one in (preset.figures if preset else ())
        if (isinstance(one.asked, Solved) and one.asked.figure in _TIMES)
        or (isinstance(one.asked, Reduced) and one.asked.figure == "seconds")
    }


def _solves(preset: Preset | None) -> bool:
    return preset is not None and any(
        isinstance(one.asked, Solved | Seeds | Saved) for one in preset.figures
    )


def command_of(entry: Entry, preset: Preset | None = None, runs: Sequence[Run] = ()) -> str:
    """A command that gives the figures of ours; with a limit that all runs had."""
    source = entry.source
    limits = {run.limit_seconds for run in runs}
    limit = next(iter(limits)) if len(limits) == 1 else None
    limited = "" if limit is None or not _solves(preset) else f" --time-limit {limit:g}"
    if runs and all(run.paper_times for run in runs):
        limited += " --paper-times"
    if isinstance(source, FromPreset):
        return f"optimizer compare --preset {source.name}{limited} --out compared"
    if isinstance(source, FromTests):
        return f"pytest {' '.join(source.files)} -k '{source.chosen}'"
    if isinstance(source, FromReport):
        return source.command
    assert isinstance(source, FromOwn)
    return f"python -m benchmarks.reproduction --only {entry.name}{limited}"


def _together(runs: Sequence[Run], *, limits: bool) -> Iterable[tuple[str, list[Run]]]:
    """Where and with which limit the models were run, those of the same first run together."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        limit = ""
        if limits and run.limit_seconds is not None:
            limit = f", at most {run.limit_seconds:g} s a solve"
        beside = f", {DISTURBED}" if run.disturbed else ""
        where = f"at commit {run.commit} on {run.date}, {run.machine}{limit}{beside}"
        found.setdefault(where, []).append(run)
    return found.items()


def _rule(claim: Claim) -> str:
    words = "; ".join(rule.words for rule in claim.rules)
    of = f" on {', '.join(claim.models)}" if claim.models else ""
    return f"{words}{of}, {_QUANTIFIERS[claim.holds]}"


def _summary(pages: Sequence[_Page]) -> list[str]:
    rows, total = [], Counter[str]()
    for page in pages:
        never = isinstance(page.entry.source, Never)
        count = Counter[str]([NEVER] if never else [one.kind for _, one in page.verdicts])
        count[_OLDER] = sum(verdict.older for _, verdict in page.verdicts)
        total += count
        cells = (str(count[kind]) if count[kind] else "" for kind in (*KINDS, _OLDER))
        rows.append((f"[{page.entry.heading}](#{page.entry.anchor})", *cells))
    rows.append(("all", *(str(total[kind]) for kind in (*KINDS, _OLDER))))
    head = ("claims of", "hold", "so far", "do not", "out of time", "not run", "cannot be asked",
            "of these, older")  # fmt: skip
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


def _listed(points: Iterable[str]) -> list[str]:
    return [line for one in points for line in _wrapped(f"- {one}", 2)]


def _sentence(text: str) -> str:
    return f"{_capital(text)}."


def _as_code(command: str) -> list[str]:
    lines = textwrap.wrap(
        command, COLUMNS - 6, initial_indent="    ", subsequent_indent="        ",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
