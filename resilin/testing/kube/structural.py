"""Structural schemas of custom resources: what a server prunes, fills in and refuses. Pure.

The order is a server's: unknown fields are dropped, defaults are filled in, types and bounds are checked, and only an
object that passes is shown to the rules.
"""

from __future__ import annotations

import copy
import datetime
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from resilin.testing.kube import rules
from resilin.testing.kube.failures import Cause, Json
from resilin.testing.kube.rules import Rule

Schema = Mapping[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED = "x-kubernetes-embedded-resource"

_PYTHON: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_SPAN = {"int32": 1 << 31, "int64": 1 << 63}
_AT_ROOT = frozenset({"apiVersion", "kind", "metadata"})


def prune(value: Any, schema: Schema, path: str = "", root: bool = False) -> list[str]:
    """Drop the fields that `schema` does not know, in place; returns where they were."""
    gone: list[str] = []
    if isinstance(value, list):
        for index, item in enumerate(value):
            gone += prune(item, schema.get("items", {}), f"{path}[{index}]")
    if not isinstance(value, dict):
        return gone
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    keeps = _AT_ROOT if root or schema.get(EMBEDDED) else frozenset()
    for key in list(value):
        below = f"{path}.{key}" if path else key
        if key in keeps:
            continue
        if key in known:
            gone += prune(value[key], known[key], below)
        elif isinstance(rest, Mapping):
            gone += prune(value[key], rest, below)
        elif not schema.get(PRESERVE) and rest is not True:
            del value[key]
            gone.append(below)
    return gone


def fill_in(value: Any, schema: Schema) -> None:
    """Set what has a default and is not there, and drop nulls that a default replaces; in place."""
    if isinstance(value, list):
        for item in value:
            fill_in(item, schema.get("items", {}))
    if not isinstance(value, dict):
        return
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for key, inner in known.items():
        if key in value and value[key] is None and not inner.get("nullable"):
            del value[key]
        if key not in value and "default" in inner:
            value[key] = copy.deepcopy(inner["default"])
    for key, item in value.items():
        inner = known.get(key, rest)
        if isinstance(inner, Mapping):
            fill_in(item, inner)


def check(value: Any, old: Any, schema: Schema, engine: Callable[[str], Rule] = rules.compiled) -> list[Cause]:
    """What is wrong with an object that replaces `old` (None: there was none). `engine` compiles rules.

    What is as it was is not checked again, as servers from 1.30 on have it: a stored object that a newer schema refuses
    can still be changed elsewhere, and deleted.
    """
    causes = list(_types(value, schema, "", old))
    return causes or list(_rules(value, old, schema, "", engine))


def _types(value: Any, schema: Schema, path: str, old: Any) -> Iterator[Cause]:
    if (value is None and schema.get("nullable")) or _is_as_it_was(value, old):
        return
    if schema.get(INT_OR_STRING):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield _wrong_type(path, value, "integer,string")
            return
    elif not _is_a(value, schema):
        yield _wrong_type(path, value, schema["type"])
        return
    yield from _bounds(value, schema, path)
    if isinstance(value, dict):
        yield from _object(value, schema, path, old)
    elif isinstance(value, list):
        yield from _list(value, schema, path, old)


def _is_as_it_was(value: Any, old: Any) -> bool:
    """Whether nothing differs; true and 1 do."""
    return old is not None and json.dumps(value, sort_keys=True) == json.dumps(old, sort_keys=True)


def _is_a(value: Any, schema: Schema) -> bool:
    wanted = schema.get("type")
    if wanted is None:
        return True
    if isinstance(value, bool):
        return bool(wanted == "boolean")
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON[wanted])


def _wrong_type(path: str, value: Any, wanted: str) -> Cause:
    kind = next((name for name, types in _PYTHON.items() if type(value) in types), "null")
    shown = json.dumps(value) if not isinstance(value, dict | list) else f'"{kind}"'
    named = f'{path} in body must be of type {wanted}: "{kind}"'
    return Cause(path, f"Invalid value: {shown}: {named}", "FieldValueTypeInvalid")


def _bounds(value: Any, schema: Schema, path: str) -> Iterator[Cause]:
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(json.dumps(one) for one in schema["enum"])
        yield Cause(
            path, f"Unsupported value: {json.dumps(value)}: supported values: {known}", "FieldValueNotSupported"
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, schema, path)
    elif isinstance(value, str):
        yield from _string(value, schema, path)


def _number(value: float, schema: Schema, path: str) -> Iterator[Cause]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and value < low:
        yield Cause(path, f"Invalid value: {value}: {path} in body should be greater than or equal to {low}")
    if high is not None and value > high:
        yield Cause(path, f"Invalid value: {value}: {path} in body should be less than or equal to {high}")
    span = _SPAN.get(schema.get("format", ""))
    if span is not None and not -span <= value < span:
        yield Cause(path, f"Invalid value: {value}: {path} in body must be of type {schema['format']}")


def _string(value: str, schema: Schema, path: str) -> Iterator[Cause]:
    shown = json.dumps(value)
    if len(value) < schema.get("minLength", 0):
        yield Cause(path, f"Invalid value: {shown}: {path} in body should be at least {schema['minLength']} chars long")
    if len(value) > schema.get("maxLength", len(value)):
        yield Cause(path, f"Too long: may not be more than {schema['maxLength']} bytes", "FieldValueTooLong")
    pattern = schema.get("pattern")
    if pattern is not None and not re.search(pattern, value):
        yield Cause(path, f"Invalid value: {shown}: {path} in body should match '{pattern}'")
    if schema.get("format") == "date-time" and not is_date_time(value):
        yield Cause(path, f"Invalid value: {shown}: {path} in body must be of type date-time: {shown}")


def is_date_time(text: str) -> bool:
    """Whether a text is a moment as RFC 3339 writes it."""
    try:
        return datetime.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _object(value: Json, schema: Schema, path: str, old: Any) -> Iterator[Cause]:
    for name in schema.get("required", ()):
        if name not in value:
            yield Cause(_below(path, name), "Required value", "FieldValueRequired")
    most, least = schema.get("maxProperties"), schema.get("minProperties", 0)
    if most is not None and len(value) > most:
        yield Cause(path, f"Too many: {len(value)}: must have at most {most} items", "FieldValueTooMany")
    if len(value) < least:
        yield Cause(path, f"Invalid value: {len(value)}: {path} in body should have at least {least} properties")
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for key, item in value.items():
        inner = known.get(key, rest)
        if isinstance(inner, Mapping):
            yield from _types(item, inner, _below(path, key), old.get(key) if isinstance(old, dict) else None)


def _list(value: Sequence[Any], schema: Schema, path: str, old: Any) -> Iterator[Cause]:
    most, least = schema.get("maxItems"), schema.get("minItems", 0)
    if most is not None and len(value) > most:
        yield Cause(path, f"Too many: {len(value)}: must have at most {most} items", "FieldValueTooMany")
    if len(value) < least:
        yield Cause(path, f"Invalid value: {len(value)}: {path} in body should have at least {least} items")
    earlier = _by_key(old, schema)
    for index, item in enumerate(value):
        before = earlier.get(element_key(item, schema) or "")
        yield from _types(item, schema.get("items", {}), f"{path}[{index}]", before)
    seen: set[str] = set()
    for index, item in enumerate(value):
        mark = element_key(item, schema)
        if mark is None:
            return
        if mark in seen:
            yield Cause(f"{path}[{index}]", f"Duplicate value: {mark}", "FieldValueDuplicate")
        seen.add(mark)


def element_key(item: Any, schema: Schema) -> str | None:
    """What tells an item of a set or a list map from the others, as JSON; None in other lists."""
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        return json.dumps(item, sort_keys=True)
    if kind == "map" and isinstance(item, dict):
        return json.dumps({key: item.get(key) for key in sorted(schema["x-kubernetes-list-map-keys"])})
    return None


def _rules(value: Any, old: Any, schema: Schema, path: str, engine: Callable[[str], Rule]) -> Iterator[Cause]:
    """The broken rules. `old` is None where nothing stood here before: rules that compare with it do not apply then."""
    if _is_as_it_was(value, old):
        return
    for rule in schema.get("x-kubernetes-validations", ()):
        yield from _rule(rule, engine(rule["rule"]), value, old, path)
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for key, item in value.items():
            inner = known.get(key, rest)
            if isinstance(inner, Mapping):
                before = old.get(key) if isinstance(old, dict) else None
                yield from _rules(item, before, inner, _below(path, key), engine)
    elif isinstance(value, list) and "items" in schema:
        earlier = _by_key(old, schema)
        for index, item in enumerate(value):
            before = earlier.get(element_key(item, schema) or "")
            yield from _rules(item, before, schema["items"], f"{path}[{index}]", engine)


def _by_key(old: Any, schema: Schema) -> dict[str, Any]:
    if not isinstance(old, list) or schema.get("x-kubernetes-list-type") != "map":
        return {}  # items of other lists cannot be told apart: nothing to compare with
    return {element_key(item, schema) or "": item for item in old}


def _rule(rule: Schema, program: Rule, value: Any, old: Any, path: str) -> Iterator[Cause]:
    if program.compares and old is None and not rule.get("optionalOldSelf"):
        return
    problem = program.problem(value, old)
    if problem is None:
        return
    field = path + rule.get("fieldPath", "")
    message = problem or rule.get("message") or f"failed rule: {rule['rule'].strip()}"
    shown = f'"{_kind(value)}"' if isinstance(value, dict | list) else json.dumps(value)
    reason = rule.get("reason", "FieldValueInvalid")
    words = {"FieldValueForbidden": "Forbidden", "FieldValueRequired": "Required value"}.get(reason)
    yield Cause(field, f"{words}: {message}" if words else f"Invalid value: {shown}: {message}", reason)


def _kind(value: Any) -> str:
    return "object" if isinstance(value, dict) else "array"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
