"""Describes the arguments of a command, from its parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap

from reference.text import item, paragraph


def command_lines(parser: argparse.ArgumentParser) -> list[str]:
    """A section for the command, or one for each of its subcommands."""
    lines: list[str] = []
    for one in commands_of(parser):
        lines += [f"## {one.prog}", "", *_description(one), "", *_synopsis(one), ""]
        for titled, actions in _groups(one):
            lines += ["", paragraph(f"{_capital(titled)}:"), ""] if titled else []
            lines += [_of_action(one, action) for action in actions]
        lines.append("")
    return lines


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands of a parser that do something: those without subcommands of their own."""
    subcommands = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not subcommands:
        yield parser
    for action in subcommands:
        for inner in action.choices.values():
            yield from commands_of(inner)


def _description(parser: argparse.ArgumentParser) -> list[str]:
    """The command's description; its layout is kept where the parser keeps it."""
    text = parser.description or ""
    if parser.formatter_class is argparse.RawDescriptionHelpFormatter:
        first, *rest = text.rstrip().splitlines()
        return [first, "", *(f"    {line}" for line in rest)]
    return [paragraph(_capital(text.rstrip(".")) + ".")]


def _groups(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str | None, Sequence[argparse.Action]]]:
    """Yields (title, arguments) of each group; the title is None for argparse's own groups."""
    for group in parser._action_groups:
        if actions := _without_help(group._group_actions):
            own = group.title not in ("positional arguments", "options")
            yield group.title if own else None, actions


def _synopsis(parser: argparse.ArgumentParser) -> list[str]:
    words, actions = [parser.prog], _without_help(parser._actions)
    words += [_name(action) for action in actions if not action.option_strings]
    words += [_name(action) for action in actions if action.option_strings and action.required]
    optional = any(action.option_strings and not action.required for action in actions)
    text = " ".join([*words, *(["[OPTIONS]"] if optional else [])])
    return wrap(text, 96, initial_indent="    ", subsequent_indent=" " * 8)


def _of_action(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    assert action.help, f"{parser.prog} {action.dest} has no help text"
    told = parser._get_formatter()._expand_help(action)
    if action.choices is not None:
        told = f"one of {', '.join(f'`{choice}`' for choice in action.choices)}; {told}"
    if action.option_strings and action.required:
        told = f"required; {told}"
    return item(f"`{_name(action)}`: {told}")


def _name(action: argparse.Action) -> str:
    """The argument with its value, as a user types it."""
    value = action.metavar or action.dest.upper()
    assert isinstance(value, str)
    several: Mapping[str | int | None, str]
    several = {"+": f"{value} …", "*": f"[{value} …]", "?": f"[{value}]", None: value}
    if not action.option_strings:
        return several[action.nargs] if action.nargs != 0 else value
    flag = action.option_strings[-1]
    return flag if action.nargs == 0 else f"{flag} {several[action.nargs]}"


def _without_help(actions: Iterable[argparse.Action]) -> list[argparse.Action]:
    return [action for action in actions if not isinstance(action, argparse._HelpAction)]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
