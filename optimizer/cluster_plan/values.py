"""Parses the single values of plan.yaml's cluster: names, addresses and quantities.

Parsing is strict: YAML's `true` is no number, `"8"` no whole number and `yes` in quotes no flag, so
that a value which was meant otherwise is refused, not guessed. Every range is finite.
"""

from __future__ import annotations

import ipaddress
import math
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from placewire.optimizer.quantities import parse_bits_per_second, parse_bytes, parse_seconds

_NAME = re.compile(r"[a-z][a-z0-9-]*")
# The tools that configure interfaces would take a name with a leading dash for an option.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_INTERFACE_LENGTH = 15
# In the kernel's settings these stand for all interfaces, and for those to come.
_NO_INTERFACES = ("all", "default")
_TYPE_LENGTH = 64
MEASURED = "measured"
# More than any cluster that trains one step together; each costs a connection and a measurement.
MOST_SERVERS = 2000
# A server has one NIC on a rail; servers that are cabled in pairs have a rail for each pair.
MOST_RAILS = 256
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@dataclass(frozen=True)
class Check:
    """of: converts a plan's value to the program's, or raises ValueError. accepted: the values that
    it takes, in words, for messages and docs/reference."""

    accepted: str
    of: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        return self.of(value)


def shown(value: object) -> str:
    """What was found, cut to fit a line."""
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    return _SHORT.repr(value)


def _text_where(holds: Callable[[str], object], what: str, accepted: str) -> Check:
    """Accepts a text for which `holds` is true. what: the word for such a text in messages."""

    def check(text: str) -> str:
        if not holds(text):
            raise ValueError(f"{shown(text)} is not {what}; accepted: {accepted}")
        return text

    return Check(accepted, check)


def name_of_at_most(limit: int) -> Check:
    return _text_where(
        lambda text: _NAME.fullmatch(text) and len(text) <= limit,
        "a name",
        f"a letter, then letters, digits and dashes, lower case, at most {limit} in all",
    )


server_name = name_of_at_most(20)


def _text(value: object) -> str:
    if not isinstance(value, str):
        hint = "; put it in quotes" if isinstance(value, int | float) else ""
        raise ValueError(f"found {shown(value)}; accepted: a text{hint}")
    if "\0" in value:
        raise ValueError(f"found {shown(value)}; a text must not contain a NUL character")
    return value


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
        message = f"{shown(text)} is no IPv4 address with its prefix, like 10.7.0.1/24"
        raise ValueError(message) from None
    _usable(interface.ip)
    network = interface.network
    if network.prefixlen > 30:
        raise ValueError(f"{text}: the subnet is too small for servers; give a /30 or larger")
    if interface.ip in (network.network_address, network.broadcast_address):
        raise ValueError(f"{text}: {interface.ip} is the network or broadcast address of {network}")
    return str(interface)


def _flag(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError(f"found {shown(value)}; accepted: true or false, without quotes")
    return value


def quantity(parse: Callable[[object], Any], low: float, high: float, words: str) -> Check:
    """Accepts what `parse` makes a number from low to high; `words` say this range as people do."""

    def check(value: object) -> Any:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"found {shown(value)}; accepted: {words}")
        try:
            number = parse(value)
        except OverflowError:
            number = math.inf
        if not low <= number <= high:
            raise ValueError(f"{shown(value)} is out of range; accepted: {words}")
        return number

    return Check(words, check)


def whole(low: int, high: int, unit: str = "") -> Check:
    """Accepts a whole number in the range. unit: words that follow the range in messages."""
    accepted = f"a whole number from {low} to {high}{unit}"

    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"found {shown(value)}; accepted: {accepted}")
        return value

    return Check(accepted, check)


def _latency_or_none(value: object) -> object:
    return None if value == MEASURED else _latency(value)


def _rate_or_rates(value: object) -> object:
    if not isinstance(value, dict):
        return _rate(value)
    rates = {}
    for rail, one in value.items():
        try:
            rates[rail] = _rate(one)
        except ValueError as error:
            raise ValueError(f"rail {shown(rail)}: {error}") from None
    return rates


_device_type = _text_where(
    lambda text: (
        text.strip() and text.isprintable() and text[0] != "-" and len(text) <= _TYPE_LENGTH
    ),
    "a device type",
    f"1 to {_TYPE_LENGTH} printable characters, no - first, like cpu",
)
# As the kernel has them: PCI positions, VLANs and dots included.
interface_name = _text_where(
    lambda text: (
        _INTERFACE.fullmatch(text) and len(text) <= _INTERFACE_LENGTH and text not in _NO_INTERFACES
    ),
    "an interface's name",
    f"letters, digits, _, dashes and single dots between them, at most {_INTERFACE_LENGTH} in all, "
    f"as `ip link` shows it, and not {' or '.join(_NO_INTERFACES)}",
)
_with_prefix = Check("an IPv4 address with its prefix, like 10.7.0.1/24", _ipv4_interface)
_rate = quantity(parse_bits_per_second, 1e3, 1e15, "1kbit to 1000Tbit")
_background = quantity(parse_bits_per_second, 0, 1e15, "0bit to 1000Tbit")
_latency = quantity(parse_seconds, 0, 60, f"0s to 60s, or {MEASURED}")
_message_time = quantity(parse_seconds, 0, 60, "0s to 60s")
_mtu = whole(
    1280, 9216, " bytes, as `ip link` shows it: only tunnels have less, and switches drop more"
)
_memory = quantity(parse_bytes, 1, 2**60, "1B to 1048576TiB")

Text = Annotated[str, BeforeValidator(Check("a text", _text))]
DeviceType = Annotated[Text, AfterValidator(_device_type)]
InterfaceName = Annotated[Text, AfterValidator(interface_name)]
RailName = Annotated[Text, AfterValidator(name_of_at_most(12))]
ServerName = Annotated[Text, AfterValidator(server_name)]
Address = Annotated[Text, AfterValidator(Check("an IPv4 address, like 10.9.0.1", _ipv4))]
InterfaceAddress = Annotated[Text, AfterValidator(_with_prefix)]
Flag = Annotated[bool, BeforeValidator(Check("true or false", _flag))]
Rate = Annotated[float, BeforeValidator(_rate)]
# One rate for every rail, or the rate of each.
UplinkRates = Annotated[
    float | Mapping[str, float],
    BeforeValidator(
        Check(f"{_rate.accepted}, or a mapping of each rail to its own", _rate_or_rates)
    ),
]
Background = Annotated[float, BeforeValidator(_background)]
Mtu = Annotated[int, BeforeValidator(_mtu)]
# None: the latency is to be measured.
Latency = Annotated[float | None, BeforeValidator(Check(_latency.accepted, _latency_or_none))]
MessageTime = Annotated[float, BeforeValidator(_message_time)]
Memory = Annotated[int, BeforeValidator(_memory)]
