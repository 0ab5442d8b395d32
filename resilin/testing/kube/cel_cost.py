"""Estimates what rules in CEL may cost at the most, to refuse the definitions that a real server would refuse. Pure.

A server multiplies the cost of one evaluation by the bounds of all lists and maps around the rule, and refuses what may
exceed its budget. What has no bound counts as large as a request may be. This estimate reads a rule as text: it
knows paths, comparisons and macros over lists, and takes each for at least as dear as a server does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from resilin.testing.kube.failures import Cause
from resilin.testing.kube.structural import PRESERVE, Schema

RULE_BUDGET = 10_000_000
TOTAL_BUDGET = 100_000_000

_REQUEST_BYTES = 3 << 20
_PER_BYTE = 0.1  # of comparing and searching text
_PER_PATTERN_BYTE = 0.25
_MACRO = re.compile(r"([A-Za-z_][\w.]*)\.(all|exists|exists_one|filter|map)\(\s*(\w+)\s*,")
_MATCHES = re.compile(r"\.matches\(\s*'([^']*)'")
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?!\w*\()|\bself\b|\boldSelf\b")
_COMPARES = re.compile(r"==|!=|<=|>=|<|>|\bin\b|startsWith|endsWith|contains|matches")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SCALARS = {"boolean": 5, "integer": 20, "number": 24}
_HINT = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings"


def problems(schema: Schema, path: str) -> list[Cause]:
    """The rules that cost too much, each and together."""
    causes: list[Cause] = []
    total = 0.0
    for where, rule, cost in costs(schema, path):
        total += cost
        if cost > RULE_BUDGET:
            factor = cost / RULE_BUDGET
            text = f"Forbidden: estimated rule cost exceeds budget by factor of {factor:.1f}x {_HINT} are declared)"
            causes.append(Cause(f"{where}.rule", f"{text}: {rule}", "FieldValueForbidden"))
    if total > TOTAL_BUDGET:
        text = (
            "Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget"
        )
        causes.append(Cause(path, f"{text} by factor of {total / TOTAL_BUDGET:.1f}x", "FieldValueForbidden"))
    return causes


def costs(schema: Schema, path: str, times: float = 1.0) -> Iterator[tuple[str, str, float]]:
    """Of each rule: where it is, its text, and what all its evaluations in one request may cost."""
    for index, rule in enumerate(schema.get("x-kubernetes-validations", ())):
        where = f"{path}.x-kubernetes-validations[{index}]"
        yield where, rule["rule"], times * cost(rule["rule"], {"self": schema, "oldSelf": schema})
    for name, inner in schema.get("properties", {}).items():
        yield from costs(inner, f"{path}.properties[{name}]", times)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from costs(schema[key], f"{path}.{key}", times * elements(schema))


def cost(text: str, scope: Mapping[str, Schema | None]) -> float:
    """The cost of one evaluation, with the schemas of its variables."""
    total, rest, at = 0.0, "", 0
    for start, end, over, variable, body in _macros(text):
        inner = _resolve(over, scope)
        total += elements(inner) * (1 + cost(body, {**scope, variable: _element(inner)}))
        rest += text[at:start] + f" {over} "
        at = end
    return total + _plain(rest + text[at:], scope)


def _macros(text: str) -> Iterator[tuple[int, int, str, str, str]]:
    """The outermost macros: where they stand, what they go over, their variable and their body."""
    at = 0
    while found := _MACRO.search(text, at):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield found.start(), end, found[1], found[3], text[found.end() : end - 1]
        at = end


def _plain(text: str, scope: Mapping[str, Schema | None]) -> float:
    """The cost of an expression without macros: every token, and every text or object that is compared."""
    total = float(len(_TOKEN.findall(text)))
    if _COMPARES.search(text):
        paths = [path for path in _PATH.findall(text) if path.partition(".")[0] in scope]
        total += sum(_PER_BYTE * size(_resolve(path, scope)) for path in paths if not _only_asked(path, text))
    for pattern in _MATCHES.findall(text):
        longest = max((size(_resolve(path, scope)) for path in _PATH.findall(text)), default=0)
        total += longest * _PER_BYTE * len(pattern) * _PER_PATTERN_BYTE
    return total


def _only_asked(path: str, text: str) -> bool:
    """Whether a path stands in `has()` alone, which looks at nothing."""
    return text.count(path) == text.count(f"has({path})")


def _resolve(path: str, scope: Mapping[str, Schema | None]) -> Schema | None:
    first, *rest = path.split(".")
    schema = scope.get(first)
    for name in rest:
        if schema is None or name == "size":
            break
        inner = schema.get("properties", {}).get(name)
        schema = inner if inner is not None else schema.get("additionalProperties")
    return schema if isinstance(schema, Mapping) else None


def _element(schema: Schema | None) -> Schema | None:
    """What a macro's variable is: an item of a list, a key of a map."""
    if schema is None:
        return None
    if schema.get("type") == "array":
        inner: Schema = schema.get("items", {})
        return inner
    return {"type": "string", "maxLength": 253}


def elements(schema: Schema | None) -> float:
    """How many items a list or map may have."""
    if schema is None:
        return _REQUEST_BYTES
    most = schema.get("maxItems", schema.get("maxProperties"))
    return float(most) if most is not None else _REQUEST_BYTES / 2


def size(schema: Schema | None) -> float:
    """How many bytes a value may have."""
    if schema is None:
        return _REQUEST_BYTES
    kind = schema.get("type")
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "object" and "properties" in schema and not schema.get(PRESERVE):
        return min(_REQUEST_BYTES, sum(size(inner) for inner in schema["properties"].values()))
    if kind == "array":
        return min(_REQUEST_BYTES, elements(schema) * size(schema.get("items", {})))
    if isinstance(schema.get("additionalProperties"), Mapping):
        return min(_REQUEST_BYTES, elements(schema) * (size(schema["additionalProperties"]) + 253))
    return float(min(_REQUEST_BYTES, 4 * schema.get("maxLength", math.inf)))


def unbounded(schema: Schema, path: str) -> Iterator[str]:
    """The strings, lists and maps without a bound. What is handed on as it stands has none, and is left out."""
    kind: Any = schema.get("type")
    short = "enum" in schema or schema.get("format") in ("date-time",)
    if kind == "string" and "maxLength" not in schema and not short:
        yield f"{path}: maxLength"
    if kind == "array" and "maxItems" not in schema:
        yield f"{path}: maxItems"
    if kind == "object" and "additionalProperties" in schema and "maxProperties" not in schema:
        yield f"{path}: maxProperties"
    if schema.get("x-kubernetes-int-or-string") and "maxLength" not in schema:
        yield f"{path}: maxLength"
    for name, inner in schema.get("properties", {}).items():
        yield from unbounded(inner, f"{path}.{name}")
    for key, step in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), Mapping):
            yield from unbounded(schema[key], path + step)
