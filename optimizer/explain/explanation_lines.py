"""Words an explanation in lines of at most 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.optimizer.explain.explanation import Explanation, PairTraffic, Stretch
from placewire.optimizer.explain.parallelism import Stage, parallelism_words, stage_words
from placewire.optimizer.explain.summary import verdict, wrapped
from placewire.optimizer.explain.uplinks import uplink_words
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Placement
from placewire.optimizer.quantities import format_bits_per_second, format_bytes, format_step

_MOST_STRETCHES = 16
_MOST_PAIRS = 12
_MOST_STAGES = 16
# A change or a stretch of less than this part of the step is not mentioned.
_WORTH = 0.01
_NEXT_TO_NOTHING = 0.001
_NEAR_THE_BOUND = 0.02
_KINDS = {"compute": "operators", "transfer": "transfers", "wait": "messages that wait for others"}


def explanation_lines(placement: Placement, explanation: Explanation) -> list[str]:
    step = explanation.step_seconds
    lines = [
        f"step {format_step(step)}, bound {format_step(explanation.bound_seconds)}   "
        f"({placement.model}, {placement.sharing})",
        *wrapped(verdict(placement)),
        *_stage_lines(explanation.stages),
        "",
        *_path_lines(explanation),
    ]
    if explanation.pairs:
        shown = explanation.pairs[:_MOST_PAIRS]
        reasons = {_why(pair, placement) for pair in shown}
        # What all pairs have is told once.
        common = next(iter(reasons)) if len(reasons) == 1 < len(shown) else ""
        heading = f"who sends to whom: {common}" if common else "who sends to whom"
        lines += ["", *wrapped(heading, indent="")]
        for pair in shown:
            lines += wrapped(_pair_words(pair, "" if common else _why(pair, placement), step))
        if len(explanation.pairs) > _MOST_PAIRS:
            lines.append(f"  … and {len(explanation.pairs) - _MOST_PAIRS} more pairs")
    if words := uplink_words(placement, explanation.uplinks):
        lines += ["", "what pods send each other", *(row for one in words for row in wrapped(one))]
    return [*lines, "", *_change_lines(explanation)]


def _stage_lines(found: Sequence[Stage]) -> list[str]:
    if not found:
        return []
    lines = ["", f"how the layers are spread: {parallelism_words(found)}"]
    for stage in found[:_MOST_STAGES]:
        lines += wrapped(stage_words(stage))
    if len(found) > _MOST_STAGES:
        lines.append(f"  … and {len(found) - _MOST_STAGES} more stages")
    return lines


def _path_lines(explanation: Explanation) -> list[str]:
    step = explanation.step_seconds
    if not explanation.path or not step:
        return ["the step takes no time"]
    parts = ", ".join(f"{explanation.seconds_of(k) / step:.1%} {w}" for k, w in _KINDS.items())
    lines = wrapped(f"the critical path, start to end without a gap: {parts}", indent="")
    shown = sorted(explanation.path, key=lambda stretch: -stretch.seconds)[:_MOST_STRETCHES]
    chosen = {id(one) for one in shown if one.seconds >= _WORTH * step}
    hidden: list[Stretch] = []
    for stretch in explanation.path:
        if id(stretch) in chosen:
            # Next to nothing is told with the next stretches that are short.
            if sum(one.seconds for one in hidden) >= _NEXT_TO_NOTHING * step:
                lines += _hidden_lines(hidden, step)
                hidden = []
            lines += wrapped(_stretch_words(stretch, step))
        else:
            hidden.append(stretch)
    return lines + _hidden_lines(hidden, step)


def _hidden_lines(hidden: list[Stretch], step: float) -> list[str]:
    if not hidden:
        return []
    seconds = sum(stretch.seconds for stretch in hidden)
    plural = "" if len(hidden) == 1 else "es"
    words = f"{len(hidden)} shorter stretch{plural}, {format_step(seconds)}"
    return [f"  {seconds / step:5.1%}  … {words}"]


def _stretch_words(stretch: Stretch, step: float) -> str:
    lead = f"{stretch.seconds / step:5.1%}  "
    took = format_step(stretch.seconds)
    if stretch.kind == "compute":
        names = stretch.first if stretch.operators == 1 else f"{stretch.first} … {stretch.last}"
        plural = "" if stretch.operators == 1 else "s"
        return f"{lead}{stretch.device} runs {stretch.operators} operator{plural}, {took}: {names}"
    waits = " waits behind others" if stretch.kind == "wait" else ""
    what = f"{format_bytes(stretch.bytes)} of {stretch.first}{waits}"
    return f"{lead}{stretch.source} -> {stretch.device}: {what}, {took}"


def _pair_words(pair: PairTraffic, why: str, step: float) -> str:
    size = format_bytes(pair.bytes)
    said = f"{pair.source} -> {pair.destination}: {pair.messages} messages, {size}"
    if pair.part_of_rate is not None and pair.rate_bits_per_second is not None:
        said += f"; {format_bits_per_second(pair.rate_bits_per_second)}"
    said += f"; {why}" if why else ""
    if pair.critical_seconds > 0:
        return f"{said}; the step waits {pair.critical_seconds / step:.1%} of its time for it"
    return f"{said}; the step never waits for it"


def _why(pair: PairTraffic, placement: Placement) -> str:
    if pair.source == pair.destination:
        return "inside one server"
    if pair.part_of_rate is not None:
        given = f"{pair.part_of_rate:.0%} of what {pair.source} gives"
        return f"{given}, for {pair.part_of_bytes:.0%} of its bytes"
    if placement.cluster.links and not placement.cluster.rails:
        return "a link of its own"
    return SHARINGS[placement.sharing].why_this_rate


def _change_lines(explanation: Explanation) -> list[str]:
    step, bound = explanation.step_seconds, explanation.bound_seconds
    lines = ["what would help, with the same placement and orders simulated again"]
    for change in explanation.changes:
        gain = 1 - change.step_seconds / step if step else 0.0
        lines += wrapped(f"{-gain:+6.1%}  {format_step(change.step_seconds)}  {change.what}")
    if (limit := explanation.limit) is not None:
        lines += wrapped(f"{limit.what} would leave {format_step(limit.step_seconds)}")
    more = explanation.more
    lines += wrapped(
        f"{more.what}: no placement on it can be below {format_step(more.step_seconds)}, on this "
        f"cluster {format_step(bound)}"
    )
    return lines + [line for words in _advice(explanation) for line in wrapped(words, indent="")]


def _advice(explanation: Explanation) -> tuple[str, str]:
    """(the change that helps most, how much a better placement could help)."""
    step, bound = explanation.step_seconds, explanation.bound_seconds
    best = min(explanation.changes, key=lambda change: change.step_seconds, default=None)
    gain = 1 - best.step_seconds / step if best is not None and step else 0.0
    placed = 1 - bound / step if step else 0.0
    search = f"a better placement: at most {placed:.1%} shorter, by the bound"
    if placed <= _NEAR_THE_BOUND:
        search = f"a better placement: no gain, this one is within {placed:.1%} of the bound"
    if best is None or gain < _WORTH:
        return "helps most: none of these", search
    return f"helps most: {best.what}, {gain:.1%} shorter", search
