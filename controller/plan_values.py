"""One value of plan.yaml each: names, addresses, numbers and quantities, with what is accepted.

Strict: YAML's `true` is no number, `"8"` no whole number and `yes` in quotes no flag, so that what
was meant otherwise is told and not guessed. Every range is finite.
"""

from __future__ import annotations

import ipaddress
import math
import re
import reprlib
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from optimizer.quantities import (
    parse_bits_per_second,
    parse_bytes,
    parse_fraction,
    parse_seconds,
)

_NAME = re.compile(r"[a-z][a-z0-9-]*")
# A dash in front would be an option to the tools that interfaces are set with.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_INTERFACE_LENGTH = 15
_TYPE_LENGTH = 64
# YAML 1.1 reads these as text: it wants a dot before, and a sign after, the exponent's letter.
_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: object) -> str:
    """What was found, cut to what fits a line."""
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    return _SHORT.repr(value)


def name_of_at_most(limit: int) -> Callable[[str], str]:
    """A check that raises ValueError where a text is no name of ours."""

    def check(text: str) -> str:
        if not _NAME.fullmatch(text) or len(text) > limit:
            raise ValueError(
                f"{shown(text)} is not a name; accepted: a letter, then letters, digits and "
                f"dashes, lower case, at most {limit} in all"
            )
        return text

    return check


server_name = name_of_at_most(20)


def _text(value: object) -> str:
    if not isinstance(value, str):
        hint = "; put it in quotes" if isinstance(value, int | float) else ""
        raise ValueError(f"found {shown(value)}; accepted: a text{hint}")
    if "\0" in value:
        raise ValueError(f"found {shown(value)}; a text must not contain a NUL character")
    return value


def _variable_name(text: str) -> str:
    if not text or "=" in text:
        raise ValueError(f"{shown(text)} is not a variable's name; it is empty or has a `=`")
    return text


def _device_type(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > _TYPE_LENGTH:
        raise ValueError(
            f"{shown(text)} is not a device type; accepted: 1 to {_TYPE_LENGTH} printable "
            "characters, like cpu"
        )
    return text


def _interface_name(text: str) -> str:
    """As the kernel has it: PCI positions, VLANs and dots included."""
    if not _INTERFACE.fullmatch(text) or len(text) > _INTERFACE_LENGTH:
        raise ValueError(
            f"{shown(text)} is not an interface's name; accepted: letters, digits, _, dashes and "
            f"single dots between them, at most {_INTERFACE_LENGTH} in all, as `ip link` shows it"
        )
    return text


def _usable(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """Raises ValueError where no server can have this address."""
    if address.version == 6:
        raise ValueError(f"{address} is IPv6, which is not supported; give an IPv4 address")
    if (
        address.is_unspecified
        or address.is_multicast
        or address.is_loopback
        or address.is_reserved
        or address in ipaddress.IPv4Network("0.0.0.0/8")
    ):
        raise ValueError(f"{address} is no address that a server can be reached at; give its own")


def _ipv4(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is no IPv4 address, like 10.9.0.1") from None
    _usable(address)
    return str(address)


def _ipv4_interface(text: str) -> str:
    try:
        interface = ipaddress.ip_interface(text)
    except ValueError:
        raise ValueError(
            f"{shown(text)} is no IPv4 address with its prefix, like 10.7.0.1/24"
        ) from None
    _usable(interface.ip)
    network = interface.network
    if network.prefixlen > 30:
        raise ValueError(
            f"{text}: a rail's subnet needs room for its servers: a prefix of at most /30"
        )
    if interface.ip in (network.network_address, network.broadcast_address):
        raise ValueError(f"{text}: {interface.ip} is the network or broadcast address of {network}")
    return str(interface)


def _whole(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"found {shown(value)}; accepted: a whole number from {low} to {high}")
        return value

    return check


def _version(value: object) -> object:
    """A plain Literal[1] would take `true` and 1.0 for it."""
    if type(value) is not int or value != 1:
        raise ValueError(f"found {shown(value)}; accepted: 1")
    return value


def _flag(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError(f"found {shown(value)}; accepted: true or false, without quotes")
    return value


def _number(value: object) -> float:
    """A finite number; 1e-3 too, which YAML takes for text."""
    written = value if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    if isinstance(written, str) and not _EXPONENT.fullmatch(written):
        raise ValueError(f"found {shown(value)}; accepted: a number")
    try:
        number = float(written)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"found {shown(value)}; accepted: a finite number")
    return number


def _measured_seconds(value: object) -> float:
    """3s, or 3 for the same."""
    seconds = parse_seconds(value) if _has_unit(value) else _number(value)
    if not 1 <= seconds <= 60:
        raise ValueError(f"{shown(value)} is out of range; accepted: 1s to 60s")
    return seconds


def _has_unit(value: object) -> bool:
    return isinstance(value, str) and value[-1:].isalpha()


def _above(low: float, high: float) -> Callable[[float], float]:
    def check(value: float) -> float:
        if not low < value <= high:
            raise ValueError(f"{value:g} must be more than {low:g}, and at most {high:g}")
        return value

    return check


def _between(low: float, high: float) -> Callable[[float], float]:
    def check(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(f"{value:g} is outside {low:g} to {high:g}")
        return value

    return check


def _below(low: float, high: float) -> Callable[[float], float]:
    def check(value: float) -> float:
        if not low <= value < high:
            raise ValueError(f"{value:g} is outside {low:g} to {high:g}, {high:g} itself excluded")
        return value

    return check


def _quantity(
    parse: Callable[[object], Any], low: float, high: float, words: str
) -> Callable[[object], Any]:
    """parse, and the range that `words` name in the unit that people write."""

    def check(value: object) -> Any:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"found {shown(value)}; accepted: {words}")
        try:
            number = parse(value)
        except OverflowError:
            raise ValueError(f"{shown(value)} is out of range; accepted: {words}") from None
        if not low <= number <= high:
            raise ValueError(f"{shown(value)} is out of range; accepted: {words}")
        return number

    return check


_rate = _quantity(parse_bits_per_second, 1e3, 1e15, "1kbit to 1000Tbit")
_latency = _quantity(parse_seconds, 0, 60, "0s to 60s")
_time_limit = _quantity(parse_seconds, 1e-3, 604_800, "1ms to 168h")
_memory = _quantity(parse_bytes, 1, 2**60, "1B to 1048576TiB")
_fraction = _quantity(parse_fraction, 0, 1, "0% to 100%")
_floor = _quantity(parse_fraction, 0.01, 1, "1% to 100%")
_background = _quantity(parse_bits_per_second, 0, 1e15, "0bit to 1000Tbit")

Text = Annotated[str, BeforeValidator(_text)]
VariableName = Annotated[Text, AfterValidator(_variable_name)]
DeviceType = Annotated[Text, AfterValidator(_device_type)]
InterfaceName = Annotated[Text, AfterValidator(_interface_name)]
RailName = Annotated[Text, AfterValidator(name_of_at_most(12))]
ServerName = Annotated[Text, AfterValidator(server_name)]
PlanName = Annotated[Text, AfterValidator(name_of_at_most(24))]
Address = Annotated[Text, AfterValidator(_ipv4)]
InterfaceAddress = Annotated[Text, AfterValidator(_ipv4_interface)]
Version = BeforeValidator(_version)
Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, BeforeValidator(_whole(1, 2**31 - 1))]
Threads = Annotated[int, BeforeValidator(_whole(1, 1024))]
Seed = Annotated[int, BeforeValidator(_whole(0, 2**32 - 1))]
Rate = Annotated[float, BeforeValidator(_rate)]
Latency = Annotated[float, BeforeValidator(_latency)]
TimeLimit = Annotated[float, BeforeValidator(_time_limit)]
Memory = Annotated[int, BeforeValidator(_memory)]
Fraction = Annotated[float, BeforeValidator(_fraction)]
# HTB wants a minimum above zero.
Floor = Annotated[float, BeforeValidator(_floor)]
Background = Annotated[float, BeforeValidator(_background)]
# A gap of 1 would accept any placement: the optimizer refuses it too.
Gap = Annotated[Fraction, AfterValidator(_below(0, 1))]
LearningRate = Annotated[float, BeforeValidator(_number), AfterValidator(_above(0, 1e6))]
Momentum = Annotated[float, BeforeValidator(_number), AfterValidator(_below(0, 1))]
WeightDecay = Annotated[float, BeforeValidator(_number), AfterValidator(_between(0, 1e6))]
TimeScale = Annotated[float, BeforeValidator(_number), AfterValidator(_above(0, 1e9))]
MeasuredSeconds = Annotated[float, BeforeValidator(_measured_seconds)]
