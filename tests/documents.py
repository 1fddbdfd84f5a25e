"""Finds what documents say that tests can check: links, commands, files and keys of a plan."""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import placewire.agent.main
import placewire.controller.cli
import placewire.optimizer.cli
from placewire.controller.plan.plan import Plan
from reference.models import sections
from tests.paths import ROOT

DOCUMENTS = (
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
PROGRAMS: Mapping[str, argparse.ArgumentParser] = {
    "controller": placewire.controller.cli.parser(),
    "agent": placewire.agent.main.parser(),
    "optimizer": placewire.optimizer.cli.parser(with_arguments=True),
}
_SHELL = ("<", ">", "|", "||", "&&", ";", "&")


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def blocks(text: str) -> Iterator[list[str]]:
    """The lines of each code block, fenced or indented, without the indent; `\\` joins lines."""
    fenced = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.M | re.S)
    rest = re.sub(r"^ *```\w*\n.*?^ *```", "", text, flags=re.M | re.S)
    indented = re.findall(r"(?:^|\n\n)((?: {4,}.*(?:\n|$)|\n(?= {4}))+)", rest)
    for block in (*fenced, *indented):
        yield [line.strip() for line in block.replace("\\\n", " ").splitlines()]


def inventories(text: str) -> Iterator[str]:
    """The files that a reader is told to give with --inventory: code that begins with `all:`."""
    for paragraph in text.split("\n\n"):
        lines = textwrap.dedent(paragraph)
        if paragraph.startswith("    ") and lines.startswith("all:\n"):
            yield lines + "\n"


def spans(text: str) -> Iterator[str]:
    """The text in single backticks, on one line or over two."""
    without_fences = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    without_blocks = re.sub(r"^ {4,}\S.*$", "", without_fences, flags=re.M)
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", without_blocks):
        yield " ".join(span.split())


def commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """(a command's words from the program on, whether the line can be typed as it stands)"""
    for block in blocks(text):
        for line in block:
            found = re.match(
                r"(?:[$#] )?(?:sudo )?(?:\.venv/bin/|/opt/placewire/\.venv/bin/)?", line
            )
            assert found is not None
            if words := _words(line[found.end() :]):
                yield words, not any(map(_stands_for_another, words))
    for span in spans(text):
        if words := _words(span):
            yield words, False


def _words(line: str) -> list[str]:
    if line.split(" ", maxsplit=1)[0] not in PROGRAMS or " " not in line:
        return []
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # prose with an apostrophe, or a program's output
        return []
    end = next((n for n, word in enumerate(words) if word in _SHELL), len(words))
    return words[:end]


def _stands_for_another(word: str) -> bool:
    return word.isupper() or "…" in word or word.startswith("[")


def what_is_wrong(words: list[str], *, as_it_stands: bool) -> str | None:
    """Names a subcommand or an option that the command lacks, or says that it is refused."""
    parser, rest = PROGRAMS[words[0]], words[1:]
    while (known := _subcommands(parser)) and rest and not _stands_for_another(rest[0]):
        if rest[0] in ("--help", "--version"):
            return None
        if rest[0] not in known:
            return f"there is no {words[0]} {rest[0]}"
        parser = known[rest.pop(0)]
    options = {option for action in parser._actions for option in action.option_strings}
    for word in rest:
        if word.startswith("-") and word.split("=")[0] not in options and not _is_number(word):
            return f"{parser.prog} has no {word}"
    if as_it_stands:
        try:
            PROGRAMS[words[0]].parse_args(words[1:])
        except SystemExit as refused:
            return None if refused.code == 0 else f"`{' '.join(words)}` is refused"
    return None


def _subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    return next(
        (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {}
    )


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-[0-9.]+", word) is not None


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes of the document's headings."""
    without_code = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", without_code, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def plan_keys() -> set[str]:
    """The keys of all kinds of plan, like `job.checkpoint.folder`, without brackets."""
    return {
        ".".join(part for part in (section.path.replace("[]", ""), entry.key) if part)
        for section in sections(Plan)
        for entry in section.entries
    }
