"""Messages of ovsdb-server, cut anywhere, are read as the package `ovs` itself reads them."""

from __future__ import annotations

import json
from typing import Any

import ovs.json
import ovs.jsonrpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.agent.drivers import ovsdb_connection
from placewire.agent.drivers.ovsdb_json import Parser

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from('{}[]"\\,: \nä€😀u'))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)
MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), VALUES), min_size=1, max_size=4)


def read(parts: list[str]) -> list[Any]:
    """Feeds the parser as ovs.jsonrpc.Connection.recv does."""
    found, parser = [], Parser()
    for part in parts:
        rest = part
        while rest:
            taken = parser.feed(rest)
            assert 0 < taken <= len(rest)
            rest = rest[taken:]
            if parser.is_done():
                found.append(parser.finish())
                parser = Parser()
    return found


@settings(max_examples=40, deadline=None)
@given(MESSAGES, st.booleans(), st.sampled_from(["", " ", "\n"]), st.data())
def test_messages_are_read_wherever_they_are_cut(
    messages: list[Any], ascii_only: bool, between: str, data: st.DataObject
) -> None:
    text = between.join(json.dumps(one, ensure_ascii=ascii_only) for one in messages)
    cuts = sorted(data.draw(st.lists(st.integers(1, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if a < b]
    assert read(parts) == messages
    assert read([*text]) == messages


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("HTTP/1.1 400", "Expecting value"),
        ("]", "Expecting value"),
        ('{"a": }', "Expecting value"),
        ('{"a": 1,}', "line 1 column"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "recursion"),
    ],
)
def test_what_is_no_message_is_said(text: str, said: str) -> None:
    parser = Parser()
    parser.feed(text)
    assert parser.is_done() and said in parser.finish()


def test_the_link_reads_with_it() -> None:
    assert ovsdb_connection.ovs.jsonrpc is ovs.jsonrpc  # type: ignore[attr-defined]
    assert ovs.json.PARSER == ovs.json.PARSER_C or ovs.json.Parser is Parser
