"""The pieces of structural schemas. Each string, list and map has a bound, so that the cost of every rule is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"  # what objects are called
LABEL_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"  # a name without dots
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
IMAGE = r"^[^\s]+$"
QUANTITY = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]+))?$"


def text(most: int, about: str = "", *, pattern: str = "", least: int = 0, default: str | None = None) -> Schema:
    """A string of at most `most` characters."""
    result: Schema = {"type": "string", "maxLength": most}
    if about:
        result["description"] = about
    if pattern:
        result["pattern"] = pattern
    if least:
        result["minLength"] = least
    if default is not None:
        result["default"] = default
    return result


def name(about: str = "") -> Schema:
    """The name of another object."""
    return text(253, about, pattern=NAME)


def choice(words: Sequence[str], about: str, default: str | None = None) -> Schema:
    """One of some words."""
    result: Schema = {"type": "string", "enum": list(words), "maxLength": max(map(len, words)), "description": about}
    return result if default is None else {**result, "default": default}


def integer(least: int, most: int, about: str = "", default: int | None = None) -> Schema:
    """A whole number within bounds."""
    size = "int32" if most < 1 << 31 else "int64"
    result: Schema = {"type": "integer", "format": size, "minimum": least, "maximum": most}
    if about:
        result["description"] = about
    return result if default is None else {**result, "default": default}


def switch(about: str, default: bool | None = None) -> Schema:
    """True or false."""
    result: Schema = {"type": "boolean", "description": about}
    return result if default is None else {**result, "default": default}


def quantity() -> Schema:
    """An amount of a resource: a number, or a text such as 500m or 2Gi."""
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": 32,
        "pattern": QUANTITY,
        "x-kubernetes-int-or-string": True,
    }


def mapping(values: Schema, most: int, about: str = "") -> Schema:
    """A map with at most `most` keys."""
    result: Schema = {"type": "object", "maxProperties": most, "additionalProperties": values}
    return {**result, "description": about} if about else result


def listed(items: Schema, most: int, about: str = "", *, keys: Sequence[str] = (), least: int = 0) -> Schema:
    """A list of at most `most` items; with `keys` one that writers merge by these fields."""
    result: Schema = {"type": "array", "maxItems": most, "items": items}
    if about:
        result["description"] = about
    if least:
        result["minItems"] = least
    if keys:
        result["x-kubernetes-list-type"], result["x-kubernetes-list-map-keys"] = "map", list(keys)
    else:
        result["x-kubernetes-list-type"] = "atomic"
    return result


def record(
    fields: Mapping[str, Schema],
    about: str = "",
    *,
    required: Sequence[str] = (),
    rules: Sequence[Schema] = (),
    default: Schema | None = None,
    more: bool = False,
) -> Schema:
    """An object with these fields; with `more` what else stands there is kept as it is, for Kubernetes to judge."""
    result: Schema = {"type": "object"}
    if about:
        result["description"] = about
    if fields:
        result["properties"] = dict(fields)
    if required:
        result["required"] = list(required)
    if default is not None:
        result["default"] = default
    if more:
        result["x-kubernetes-preserve-unknown-fields"] = True
    if rules:
        result["x-kubernetes-validations"] = list(rules)
    return result


def as_is(about: str = "") -> Schema:
    """An object that is handed on to Kubernetes, which knows its fields."""
    return record({}, about, more=True)
