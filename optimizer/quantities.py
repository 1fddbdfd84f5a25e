"""Parses quantities as people write them (50us, 400Gbit, 600MiB, 5%), and formats them."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ%]*)\s*")
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0,
}  # fmt: skip
_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_BYTES = {
    "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip


def _split(text: object, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; write it with its unit, like {example}")
    number = float(match[1])
    if math.isinf(number):
        raise ValueError(f"{text!r} is too large for a number; write a finite one, like {example}")
    return number, match[2]


def _scaled(text: object, units: dict[str, float], example: str) -> float:
    number, unit = _split(text, example)
    factor = units.get(unit) or units.get(unit.lower())
    if factor is None:
        found = f"unit {unit!r}" if unit else "no unit"
        raise ValueError(f"{text!r} has {found}; accepted: {', '.join(units)}, like {example}")
    value = number * factor
    if math.isinf(value):
        raise ValueError(f"{text!r} is too large for a number; write a finite one, like {example}")
    return value


def parse_seconds(text: object) -> float:
    return _scaled(text, _SECONDS, "50us")


def parse_bits_per_second(text: object) -> float:
    return _scaled(text, _BITS, "50Mbit")


def parse_bytes(text: object) -> int:
    return int(_scaled(text, _BYTES, "600MiB"))


def parse_fraction(text: object) -> float:
    """Both "5%" and 0.05 as 0.05."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        if not math.isfinite(text):
            raise ValueError(f"{text!r} is not a finite number; write a percentage, like 5%")
        return float(text)
    number, unit = _split(text, "5%")
    if unit not in ("%", ""):
        raise ValueError(f"{text!r} has unit {unit!r}; write a percentage, like 5%")
    return number / 100 if unit == "%" else number


def format_bits_per_second(rate: float) -> str:
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if abs(rate) >= factor:
            return f"{rate / factor:{'.3g' if rate / factor < 100 else '.0f'}} {unit}"
    return f"{rate:.0f} bit/s"


def format_bytes(count: float) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def format_step(seconds: float) -> str:
    """A step time with enough digits to tell it from its bound, like 104.371 ms."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor * (1 - 1e-6):  # so that 0.9999999 s prints as 1.000 s
            return f"{seconds / factor:.3f} {unit}"
    return f"{seconds * 1e6:.3f} µs"
