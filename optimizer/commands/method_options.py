"""Adds to a command's parser the options that only the chosen method has."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from placewire.optimizer.registry import Registry

AddOptions = Callable[[argparse._ArgumentGroup], None]


class WithOptions(Protocol):
    @property
    def options(self) -> tuple[AddOptions, ...]: ...


def add_method_options(
    parser: argparse.ArgumentParser,
    registry: Registry[Any],
    flag: str,
    given: Sequence[str] | None,
) -> None:
    """flag: the argument that names the method. given: the arguments, whose method's options are
    added; None: the options of all methods are, for the reference. Raises BrokenMethodError where
    the given method cannot be loaded."""
    asked = () if given is None else _asked(registry, flag, given)
    methods = registry.sound() if given is None else ((name, registry.load(name)) for name in asked)
    owners: dict[AddOptions, list[str]] = {}
    for name, method in methods:
        for add in method.options:
            owners.setdefault(add, []).append(name)
    for add, names in owners.items():
        add(parser.add_argument_group(f"of {flag} {', '.join(names)}"))


def parsed(
    parser: argparse.ArgumentParser, registry: Registry[Any], flag: str, given: Sequence[str]
) -> argparse.Namespace:
    """The given arguments, parsed by a parser with the chosen method's options. Ends the program
    with code 2 for another method's option, and says whose option it is."""
    options, unknown = parser.parse_known_args(given)
    if unknown:
        owners = [
            name
            for name, method in registry.sound()
            if unknown[0].partition("=")[0] in _flags(method.options)
        ]
        if owners:
            parser.error(f"{unknown[0]} is an option of {flag} {', '.join(owners)}")
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def options_of(method: WithOptions, options: argparse.Namespace) -> Mapping[str, Any]:
    return {action.dest: getattr(options, action.dest) for action in _actions(method.options)}


def _actions(adds: Sequence[AddOptions]) -> list[argparse.Action]:
    group = argparse.ArgumentParser(add_help=False).add_argument_group()
    for add in adds:
        add(group)
    return group._group_actions


def _flags(adds: Sequence[AddOptions]) -> set[str]:
    return {flag for action in _actions(adds) for flag in action.option_strings}


def _asked(registry: Registry[Any], flag: str, given: Sequence[str]) -> tuple[str, ...]:
    looking = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    looking.add_argument(flag, dest="name")
    name = looking.parse_known_args(given)[0].name
    return (name,) if name in registry else ()
