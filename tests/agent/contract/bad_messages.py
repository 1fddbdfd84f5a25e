"""Messages that are no longer what a controller would send, mutated from valid ones by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from placewire.agent.contract.measurement import Transfer
from placewire.agent.contract.messages import (
    Commit,
    Destroy,
    FindNeighbours,
    Observe,
    Preview,
    ReadBack,
    ReadCounters,
    Renew,
    Restore,
    RunTransfers,
    Stage,
    StartServers,
    StopServers,
)
from placewire.frozen import Frozen
from tests.agent.states import desired_state

_DESIRED = desired_state(9, nics=("nic0",))
_TRANSFER = Transfer(
    source="s1", destination="s2", rail="r0", source_address="10.7.0.1",
    destination_address="10.7.0.2", tcp_port=5201, promised_bits_per_second=1e7,
)  # fmt: skip
REQUESTS: tuple[Frozen, ...] = (
    Stage(desired=_DESIRED, lease_seconds=10),
    Preview(desired=_DESIRED),
    Renew(generation=3, lease_seconds=10),
    Commit(generation=3, lease_seconds=10),
    Restore(generation=3),
    Destroy(plan_name="test-plan"),
    ReadBack(generation=3),
    Observe(),
    StartServers(transfers=(_TRANSFER,), seconds=2),
    RunTransfers(transfers=(_TRANSFER,), seconds=2, start_unix=1_700_000_000),
    StopServers(),
    ReadCounters(interfaces=("nic0",)),
    FindNeighbours(interfaces=("pw-nic0",), addresses=("10.7.0.2",)),
)
_STRANGE_TEXTS = (
    "",
    "\0",
    "\ufeffx",
    "\u202eabc",
    "𝔘" * 300,
    "x" * 100_000,
    "../../etc",
    "a\nb",
    "%s%n",
)
_NO_NUMBERS = ("1e999", "-1e999", "NaN", "-Infinity", "1" + "0" * 400, "-1" + "0" * 400,
               "9" * 5000, "18446744073709551616")  # fmt: skip
# Stands in a document for what json.dumps would not write.
_MARK, _QUOTE = "\x01raw\x01", "\x02"


class BadMessage(NamedTuple):
    """refused: whether no agent may take it for a request; else it may be one by chance."""

    kind: str
    data: bytes
    refused: bool


def bad_messages(seed: int, count: int) -> Iterator[BadMessage]:
    rng = random.Random(seed)
    kinds = list(_KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        body = rng.choice(REQUESTS).model_dump(mode="json")
        yield _KINDS[kind](rng, kind, body)


def bad_documents(rng: random.Random, document: dict[str, Any]) -> Iterator[bytes]:
    """Bad documents made from any contract's document; each must be refused."""
    for mutate in (_wrong_type, _unknown_field, _deep):
        copy = json.loads(json.dumps(document))
        yield _bytes(mutate(rng, copy))
    data = json.dumps(document).encode()
    yield data[: rng.randrange(1, len(data))]


def _envelope(body: Any) -> bytes:
    return _bytes({"envelopes": [{"id": "m1", "body": body}]})


def _bytes(document: Any) -> bytes:
    text = json.dumps(document)
    mark = json.dumps(_MARK)[:-1]
    while (at := text.find(mark)) >= 0:
        end = text.index('"', at + 1)
        raw = text[at + len(mark) : end].replace(json.dumps(_QUOTE)[1:-1], '"')
        text = text[:at] + raw + text[end + 1 :]
    return text.encode()


def _places(document: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value in the document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    found = []
    for key, value in items:
        found.append((document, key))
        if isinstance(value, (dict, list)):
            found += _places(value)
    return found


def _wrong_type(rng: random.Random, body: Any) -> Any:
    holder, key = rng.choice(_places(body))
    value = holder[key]
    others = ["x", 7] if isinstance(value, (dict, list)) else [{"a": 1}, [1], [[]]]
    holder[key] = rng.choice(others)
    return body


def _unknown_field(rng: random.Random, body: Any) -> Any:
    """Adds an unknown field. Not to an empty mapping, whose keys are free."""
    holders = [body, *(h[k] for h, k in _places(body) if isinstance(h[k], dict) and h[k])]
    rng.choice(holders)[rng.choice(["surprise", "", "\ud800", "__class__", "x" * 5000])] = 1
    return body


def _no_number(rng: random.Random, body: Any) -> Any:
    """Spoils a number. Where there is none, it adds one that nobody asks for."""
    places = [(h, k) for h, k in _places(body) if type(h[k]) in (int, float)]
    holder, key = rng.choice(places) if places else (body, "surprise")
    holder[key] = _MARK + rng.choice(_NO_NUMBERS)
    return body


def _deep(rng: random.Random, body: Any) -> Any:
    depth = rng.choice([3, 200, 2000, 100_000])
    holder, key = rng.choice(_places(body))
    objects = f"{{{_QUOTE}a{_QUOTE}:" * depth + "1" + "}" * depth
    holder[key] = _MARK + rng.choice(["[" * depth + "]" * depth, objects])
    return body


def _mutated(
    mutate: Callable[[random.Random, Any], Any],
) -> Callable[[random.Random, str, Any], BadMessage]:
    return lambda rng, kind, body: BadMessage(kind, _envelope(mutate(rng, body)), True)


def _truncated(rng: random.Random, kind: str, body: Any) -> BadMessage:
    data = _envelope(body)
    return BadMessage(kind, data[: rng.randrange(len(data))], True)


def _noise(rng: random.Random, kind: str, body: Any) -> BadMessage:
    data = bytearray(_envelope(body))
    for _ in range(rng.randint(1, 20)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return BadMessage(kind, bytes(data), False)


def _strange_text(rng: random.Random, kind: str, body: Any) -> BadMessage:
    places = [(h, k) for h, k in _places(body) if isinstance(h[k], str)]
    holder, key = rng.choice(places)
    surrogate = rng.random() < 0.3
    holder[key] = "\ud800" if surrogate else rng.choice(_STRANGE_TEXTS)
    return BadMessage(kind, _envelope(body), surrogate)


def _field_missing(rng: random.Random, kind: str, body: Any) -> BadMessage:
    holder, key = rng.choice(_places(body))
    del holder[key]
    return BadMessage(kind, _envelope(body), key == "request")


def _no_envelope(rng: random.Random, kind: str, body: Any) -> BadMessage:
    good = {"id": "m1", "body": body}
    document = rng.choice(
        [
            None, 5, "x", [], {}, {"envelopes": None}, {"envelopes": 5}, {"envelopes": "x"},
            {"envelopes": {"id": "m1", "body": body}}, {"envelopes": [good, 5]},
            {"envelopes": [{"body": body}]}, {"envelopes": [[good]]}, [good],
            {"envelopes": [{"id": {"a": ["\ud800"]}, "body": 5}]},
            {"envelopes": [{"id": "\ud800", "body": None}]}, {"envelopes": [{"id": None}]},
            {"envelopes": [{"id": "m1", "body": [body]}]},
        ]
    )  # fmt: skip
    return BadMessage(kind, _bytes(document), True)


def _unknown_request(rng: random.Random, kind: str, body: Any) -> BadMessage:
    body["request"] = rng.choice(
        ["reboot", "Stage", "", None, 5, ["stage"], {"stage": 1}, "\ud800"]
    )
    return BadMessage(kind, _envelope(body), True)


_KINDS: dict[str, Callable[[random.Random, str, Any], BadMessage]] = {
    "wrong type": _mutated(_wrong_type),
    "unknown field": _mutated(_unknown_field),
    "no number": _mutated(_no_number),
    "deep nesting": _mutated(_deep),
    "truncated": _truncated,
    "noise": _noise,
    "strange text": _strange_text,
    "field missing": _field_missing,
    "no envelope": _no_envelope,
    "unknown request": _unknown_request,
}
