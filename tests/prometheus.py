"""A strict reader of Prometheus' text format, and of its conventions for names."""

from __future__ import annotations

import re

_NAME = re.compile(r"placewire_[a-z0-9]+(_[a-z0-9]+)*")
_SAMPLE = re.compile(r"(?P<name>[a-z0-9_]+)(\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(?P<name>[a-z_][a-z0-9_]*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"(,|$)')
_ESCAPES = {r"\"": '"', r"\\": "\\", r"\n": "\n"}

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Series:
    """Value by (name, labels). Raises AssertionError where a rule is broken."""
    assert text.endswith("\n") and "\r" not in text
    series: Series = {}
    families: list[str] = []
    kind = helped = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, helped, words = line.split(" ", 3)
            assert helped not in families and _NAME.fullmatch(helped) and words.strip()
            families.append(helped)
            kind = ""
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == helped and kind in ("counter", "gauge"), line
            assert (kind == "counter") == name.endswith("_total"), name
            assert "bits" not in name and "_ms" not in name, "base units: bytes, seconds"
        else:
            name, labels, value = _sample(line)
            assert name == helped and kind, f"{line}: of another family, or before its type"
            assert (name, labels) not in series, f"twice: {line}"
            assert kind == "gauge" or value >= 0
            series[name, labels] = value
    with_samples = {name for name, _ in series}
    assert set(families) == with_samples, "a family without a sample"
    return series


def _sample(line: str) -> tuple[str, frozenset[tuple[str, str]], float]:
    found = _SAMPLE.fullmatch(line)
    assert found, line
    labels, at = [], 0
    text = found["labels"] or ""
    while at < len(text):
        label = _LABEL.match(text, at)
        assert label, f"{line}: label at {at}"
        value = re.sub(r'\\["\\n]', lambda match: _ESCAPES[match[0]], label["value"])
        labels.append((label["name"], value))
        at = label.end()
    assert len(dict(labels)) == len(labels), f"a label twice: {line}"
    return found["name"], frozenset(labels), float(found["value"])
