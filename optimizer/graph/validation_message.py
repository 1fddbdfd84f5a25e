"""Words the first error that pydantic found in a file: where, what was found, what is expected."""

from __future__ import annotations

from pydantic import ValidationError

from placewire.optimizer.graph.rows import shown

_EXPECTED = {
    "model_type": "expected an object with its keys",
    "dict_type": "expected an object with its keys",
    "mapping_type": "expected an object with its keys",
    "tuple_type": "expected a list",
    "string_type": "expected a text",
    "int_type": "expected a whole number",
    "int_parsing_size": "is too large",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
}


def first_mistake(error: ValidationError) -> str:
    """`servers.0.nics.1.rail: 'a/b': expected …`, without the library's own words."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    lead = f"{place}: " if place else ""
    if first["type"] == "missing":
        return f"{lead}this key is missing"
    if first["type"] == "extra_forbidden":
        return f"{lead}unknown key"
    if first["type"] == "value_error":
        return lead + first["msg"].removeprefix("Value error, ")
    own_words = first["msg"].replace("Input should be", "expected").replace("String", "text")
    return f"{lead}{shown(first['input'])}: {_EXPECTED.get(first['type'], own_words)}"
