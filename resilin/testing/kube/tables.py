"""Answers as a Table, with a custom resource's printer columns, which clients show as they are. Pure but for ages."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any

from resilin.testing.kube.failures import Json
from resilin.testing.kube.resources import Column, Resource

_STEP = re.compile(r"\.([\w-]+)|\[(-?\d+)\]|\[\?\(@\.([\w.]+)==\s*['\"]([^'\"]*)['\"]\)\]|\['([^']+)'\]")
_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_NAME = {"name": "Name", "type": "string", "format": "name", "description": "Name of the object", "priority": 0}


def table(resource: Resource, objects: Sequence[Json], metadata: Json, include: str, headers: bool = True) -> Json:
    """The Table of some objects. `include`: Metadata, Object or None; of each object in its row."""
    columns = resource.columns if resource.custom and resource.columns else (*resource.columns, _AGE)
    defined = [_NAME, *({**_described(column)} for column in columns)]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    rows = [_row(one, columns, include) for one in objects]
    return {**head, "columnDefinitions": defined if headers else None, "rows": rows}


def _described(column: Column) -> Json:
    head = {"name": column.name, "type": column.type, "format": column.format}
    return {**head, "description": column.description, "priority": column.priority}


def _row(one: Json, columns: Sequence[Column], include: str) -> Json:
    cells = [one["metadata"]["name"], *(_cell(one, column) for column in columns)]
    if include == "None":
        return {"cells": cells}
    return {"cells": cells, "object": one if include == "Object" else partial(one)}


def partial(one: Json) -> Json:
    """An object's metadata alone."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": one["metadata"]}


def _cell(one: Json, column: Column) -> Any:
    values = lookup(one, column.path)
    if not values:
        return None
    value = values[0]
    if column.type == "date":
        return _age(value) if isinstance(value, str) else "<unknown>"
    if column.type in ("integer", "number", "boolean"):
        return value
    return value if isinstance(value, str) else str(value)


def lookup(value: Any, path: str) -> list[Any]:
    """What a JSON path of the simple kind (`.a.b[0].c[?(@.type=="x")]`) finds."""
    found, at = [value], 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise ValueError(f"unsupported JSON path {path!r} at character {at}")
        found = [item for one in found for item in _step(one, step)]
        at = step.end()
    return found


def _step(value: Any, step: re.Match[str]) -> list[Any]:
    field, index, where, wanted, quoted = step.groups()
    name = field or quoted
    if name is not None:
        return [value[name]] if isinstance(value, dict) and name in value else []
    if not isinstance(value, list):
        return []
    if index is not None:
        return value[int(index) :][:1]
    return [one for one in value if lookup(one, "." + where) == [wanted]]


def _age(moment: str) -> str:
    """How long ago that was, as Kubernetes writes it: two units at most where the first is small."""
    passed = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(moment)
    seconds = max(0, int(passed.total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if days < 2:
        return f"{hours}h"
    return f"{days}d{hours % 24}h" if days < 8 and hours % 24 else f"{days}d"
