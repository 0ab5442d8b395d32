"""Label and field selectors, in the forms that clients write into queries. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from resilin.testing.kube.failures import Json, bad_request

Predicate = Callable[[Json], bool]

_SET = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)\s*(?:,|$)")
_EQUAL = re.compile(r"\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s,()]*)\s*(?:,|$)")
_EXISTS = re.compile(r"\s*(!?)\s*([^\s!=,()]+)\s*(?:,|$)")


def labels(selector: str) -> Predicate:
    """What tells the objects that `a=b,c!=d,e in (f,g),h notin (i),j,!k` selects."""
    tests = list(_parse(selector))
    return lambda one: all(test(one["metadata"].get("labels") or {}) for test in tests)


def match_labels(selector: Mapping[str, object] | None) -> Predicate:
    """The same for a LabelSelector object; None selects nothing, an empty one everything."""
    if selector is None:
        return lambda one: False
    parts = [f"{key}={value}" for key, value in (_mapping(selector.get("matchLabels"))).items()]
    for term in _listed(selector.get("matchExpressions")):
        operator, key = term["operator"], term["key"]
        if operator in ("In", "NotIn"):
            parts.append(f"{key} {operator.lower()} ({','.join(term['values'])})")
        else:
            parts.append(key if operator == "Exists" else f"!{key}")
    return labels(",".join(parts))


def _mapping(value: object) -> Mapping[str, str]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[Json]:
    return value if isinstance(value, list) else []


def _parse(selector: str) -> list[Callable[[Mapping[str, str]], bool]]:
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    at = 0
    while at < len(selector):
        if found := _SET.match(selector, at):
            key, operator, words = found[1], found[2], frozenset(word.strip() for word in found[3].split(","))
            tests.append(_within(key, words, operator == "in"))
        elif found := _EQUAL.match(selector, at):
            tests.append(_within(found[1], frozenset({found[3]}), found[2] != "!="))
        elif found := _EXISTS.match(selector, at):
            tests.append(_exists(found[2], not found[1]))
        else:
            raise bad_request(f"unable to parse requirement: {selector!r} at character {at}")
        at = found.end()
    return tests


def _within(key: str, words: frozenset[str], wanted: bool) -> Callable[[Mapping[str, str]], bool]:
    if wanted:
        return lambda labels: key in labels and labels[key] in words
    return lambda labels: labels.get(key) not in words


def _exists(key: str, wanted: bool) -> Callable[[Mapping[str, str]], bool]:
    return lambda labels: (key in labels) == wanted


def fields(selector: str) -> Predicate:
    """What tells the objects whose fields (`metadata.name=a,spec.nodeName!=b`) are so; a missing field is empty."""
    tests: list[tuple[list[str], str, bool]] = []
    for term in filter(None, selector.split(",")):
        path, equal, value = term.replace("==", "=").partition("=")
        if not equal:
            raise bad_request(f"invalid field selector: {term!r}; expected PATH=VALUE")
        tests.append((path.removesuffix("!").split("."), value, not path.endswith("!")))
    return lambda one: all((_field(one, path) == value) == wanted for path, value, wanted in tests)


def _field(one: Json, path: list[str]) -> str:
    value: object = one
    for name in path:
        value = value.get(name, "") if isinstance(value, dict) else ""
    return str(value) if not isinstance(value, bool) else str(value).lower()
