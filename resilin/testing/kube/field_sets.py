"""Sets of fields: who manages what in an object, in the form of `metadata.managedFields`. Pure.

A path is a tuple of steps: `f:NAME` a field, `k:{...}` the item with these keys, `v:...` an item of a set; a path that
ends in `.` is the object itself, which remains when it is empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from resilin.testing.kube.failures import Json
from resilin.testing.kube.topology import FieldPlace

Path = tuple[str, ...]
Leaves = dict[Path, Any]

_SELF = "."
_NEVER = frozenset({("f:apiVersion",), ("f:kind",)})
_OWN_METADATA = frozenset(
    ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
) | {"deletionGracePeriodSeconds", "managedFields", "selfLink", "generateName"}


def leaves(value: Json, schema: Any) -> Leaves:
    """The fields of an object that somebody can manage, with their values."""
    found: Leaves = {}
    _collect(value, FieldPlace(schema), (), found)
    return {path: item for path, item in found.items() if path not in _NEVER and not _is_the_servers(path)}


def _is_the_servers(path: Path) -> bool:
    if path[0] != "f:metadata":
        return False
    return len(path) < 2 or path[1] == _SELF or path[1].removeprefix("f:") in _OWN_METADATA


def _collect(value: Any, place: FieldPlace, path: Path, found: Leaves) -> None:
    if isinstance(value, dict) and not place.atomic:
        if path:
            found[(*path, _SELF)] = None if value else {}
        for name, item in value.items():
            _collect(item, place.field(name), (*path, f"f:{name}"), found)
    elif isinstance(value, list) and place.kind in ("map", "set"):
        found[(*path, _SELF)] = None if value else []
        for item in value:
            step = place.key(item)
            if step is not None and step.startswith("k:"):
                _collect(item, place.item(), (*path, step), found)
            elif step is not None:
                found[(*path, step)] = item
    else:
        found[path] = value


def encode(paths: Iterable[Path]) -> Json:
    """The paths as a FieldsV1 object."""
    result: Json = {}
    for path in sorted(paths):
        here = result
        for step in path:
            here = here.setdefault(step, {})
    return result


def decode(fields: Json) -> set[Path]:
    """The paths of a FieldsV1 object."""
    found: set[Path] = set()
    stack: list[tuple[Path, Json]] = [((), fields)]
    while stack:
        path, here = stack.pop()
        if not here and path:
            found.add(path)
        stack += [((*path, step), inner) for step, inner in here.items()]
    return found


def shown(path: Path) -> str:
    """A path as messages write it: `.spec.containers[name="a"].image`."""
    text = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(rest).items()) + "]"
        elif kind == "v":
            text += f"[={rest}]"
    return text


def remove(value: Any, place: FieldPlace, paths: Iterable[Path]) -> None:
    """Take fields out of an object, in place, and containers with nothing left that were to go, too."""
    for path in sorted(paths, key=lambda path: (len(path), path[-1] != _SELF), reverse=True):  # what is in it before it
        steps = path[:-1] if path[-1] == _SELF else path
        _remove(value, place, steps, only_empty=path[-1] == _SELF)


def _remove(value: Any, place: FieldPlace, steps: Path, only_empty: bool) -> None:
    if not steps:
        return
    kind, _, name = steps[0].partition(":")
    if kind == "f":
        if not isinstance(value, dict) or name not in value:
            return
        if len(steps) > 1:
            _remove(value[name], place.field(name), steps[1:], only_empty)
        elif not only_empty or value[name] in ({}, []):
            del value[name]
        return
    if not isinstance(value, list) or steps[1:] in {(f"f:{key}",) for key in place.keys}:
        return  # an item's keys go with it
    for index, item in enumerate(value):
        if place.key(item) == steps[0]:
            if len(steps) > 1:
                _remove(item, place.item(), steps[1:], only_empty)
            elif not only_empty or _only_keys(item, place):
                del value[index]
            return


def _only_keys(item: Any, place: FieldPlace) -> bool:
    return not isinstance(item, dict) or set(item) <= set(place.keys)
