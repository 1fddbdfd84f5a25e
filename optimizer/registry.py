"""Finds engines, schedulers, reductions and importers by name, among the installed packages.

A package registers a method as an entry point; those of Placewire are in pyproject.toml. So another
package can add a method without a change here. Names are known without importing any method; a
method is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

T = TypeVar("T")
_OUR_MODULES = "placewire."


@dataclass(frozen=True)
class Refusal:
    """what: why a method does not take a problem, and what to do instead."""

    what: str

    def __str__(self) -> str:
        return self.what


class UnknownMethodError(ValueError):
    """No method has that name."""


class BrokenMethodError(ValueError):
    """A package registers an object that is not such a method, or a name that is taken."""


class Registry(Generic[T]):
    """The methods of one kind."""

    def __init__(self, group: str, what: str, kind: type[T]) -> None:
        """group: the group of entry points. what: the word for such a method in messages."""
        self._group, self._what, self._kind = group, what, kind

    @cached_property
    def _entries(self) -> Mapping[str, EntryPoint]:
        """By name, those of Placewire first. Raises BrokenMethodError where a name is taken."""
        found: dict[str, EntryPoint] = {}
        for entry in sorted(entry_points(group=self._group), key=_order):
            if (taken := found.get(entry.name)) is not None:
                raise BrokenMethodError(
                    f"{self._what} {entry.name!r} is registered by {_package(taken)} and by "
                    f"{_package(entry)}; remove one of the two packages"
                )
            found[entry.name] = entry
        return found

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def package(self, name: str) -> str:
        """The name of the distribution that registers the method."""
        return _package(self._entry(name))

    def load(self, name: str) -> T:
        """Imports this method and no other. Raises UnknownMethodError, and BrokenMethodError where
        the entry point cannot be imported or is not such a method."""
        entry = self._entry(name)
        try:
            method = entry.load()
        except (Exception, SystemExit) as error:  # importing runs whatever the package contains
            raise BrokenMethodError(
                f"{self._what} {name!r} of {_package(entry)} cannot be loaded "
                f"({type(error).__name__}: {error}); repair or remove that package"
            ) from error
        if not isinstance(method, self._kind):
            raise BrokenMethodError(
                f"{self._what} {name!r} of {_package(entry)} is {type(method).__name__} "
                f"({entry.value}), expected {self._kind.__module__}.{self._kind.__name__}"
            )
        return method

    def sound(self) -> Iterator[tuple[str, T]]:
        """Each method that can be loaded, with its name."""
        for name in self:
            with suppress(BrokenMethodError):
                yield name, self.load(name)

    def _entry(self, name: str) -> EntryPoint:
        if name not in self._entries:
            raise UnknownMethodError(
                f"unknown {self._what} {name!r}; accepted: {', '.join(self._entries)}"
            )
        return self._entries[name]


def _order(entry: EntryPoint) -> tuple[bool, bool, str]:
    """Placewire's own first; among them `auto`, the default, then by name. The module tells whose a
    method is without reading its package's metadata, so that --help is quick."""
    return not entry.value.startswith(_OUR_MODULES), entry.name != "auto", entry.name


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed package"
