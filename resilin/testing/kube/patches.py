"""The patches that a server takes: merge (RFC 7386), JSON (RFC 6902) and Kubernetes' strategic one. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from resilin.testing.kube.failures import Failure, Json, bad_request, unsupported_media
from resilin.testing.kube.topology import FieldPlace

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

_DIRECTIVES = ("$patch", "$retainKeys")


def merge(value: Any, patch: Any) -> Any:
    """`value` after a merge patch: null takes a field away, lists are replaced."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(value) if isinstance(value, dict) else {}
    for name, item in patch.items():
        if item is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), item)
    return result


def json_patch(value: Json, operations: Sequence[Json]) -> Json:
    """`value` after the operations, all or none. Failure 422: a test failed, or there is no such path; 400: it is no
    patch, or nothing is left that is an object."""
    result: Json = {"": copy.deepcopy(value)}
    for operation in operations:
        if not isinstance(operation, dict):
            raise bad_request(f"a JSON patch is a list of operations, which are objects, got {operation!r}")
        kind, path = operation.get("op"), ["", *_steps(operation.get("path"))]
        if kind in ("add", "replace"):
            _put(result, path, copy.deepcopy(operation.get("value")), replaces=kind == "replace")
        elif kind == "remove":
            _take(result, path)
        elif kind == "test":
            if not _equal(_at(result, path), operation.get("value")):
                raise _refused(operation.get("path"), "testing value failed")
        elif kind in ("move", "copy"):
            source = ["", *_steps(operation.get("from"))]
            if kind == "move" and path[: len(source)] == source and path != source:
                raise _refused(operation.get("path"), "an object cannot be moved into itself")
            item = _take(result, source) if kind == "move" else copy.deepcopy(_at(result, source))
            _put(result, path, item, replaces=False)
        else:
            raise bad_request(f"Unexpected kind: {kind}")
    changed = result.get("")
    if not isinstance(changed, dict):
        raise bad_request("a JSON patch must leave an object")
    return changed


def _equal(value: Any, other: Any) -> bool:
    """Whether two values are one in JSON, where true is not 1."""
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def _steps(path: Any) -> list[str]:
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise bad_request(f"a JSON patch needs a path such as /spec/replicas, got {path!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _refused(path: Any, why: str) -> Failure:
    text = f"the server rejected our request due to an error in our request: {path}: {why}"
    return Failure(422, "Invalid", text, {"causes": [{"field": str(path), "message": why}]})


def _at(value: Any, path: Sequence[str]) -> Any:
    for step in path:
        try:
            value = value[_number(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise _refused("/".join(path), "there is no such path") from None
    return value


def _number(step: str) -> int:
    """The place in a list that a step names. ValueError: none, as -1 and 01."""
    if not step.isdecimal() or (step != "0" and step.startswith("0")):
        raise ValueError(step)
    return int(step)


def _put(value: Any, path: Sequence[str], item: Any, replaces: bool) -> None:
    parent = _at(value, path[:-1])
    if replaces or not isinstance(parent, list | dict):
        _at(value, path)
    if isinstance(parent, list):
        index = len(parent) if path[-1] == "-" else _index(path, len(parent))
        if replaces:
            parent[index] = item
        else:
            parent.insert(index, item)
    else:
        parent[path[-1]] = item


def _index(path: Sequence[str], length: int) -> int:
    try:
        index = _number(path[-1])
    except ValueError:
        index = length + 1
    if index > length:
        raise _refused("/".join(path), "there is no such index")
    return index


def _take(value: Any, path: Sequence[str]) -> Any:
    _at(value, path)
    parent = _at(value, path[:-1])
    if isinstance(parent, list):
        return parent.pop(int(path[-1]))
    return parent.pop(path[-1])


def strategic(value: Any, patch: Any, place: FieldPlace) -> Any:
    """`value` after a strategic merge patch: lists with keys are merged item by item, `$patch` tells of more."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {name: item for name, item in patch.items() if name != "$patch"}
    result = dict(value) if isinstance(value, dict) else {}
    if "$retainKeys" in patch:
        result = {name: item for name, item in result.items() if name in patch["$retainKeys"]}
    for name, item in patch.items():
        if name in _DIRECTIVES or name.startswith("$setElementOrder/"):
            continue
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            result[field] = [one for one in result.get(field, ()) if one not in item]
        elif item is None or (isinstance(item, dict) and item.get("$patch") == "delete"):
            result.pop(name, None)
        elif isinstance(item, list):
            result[name] = _strategic_list(result.get(name) or [], item, place.field(name))
        else:
            result[name] = strategic(result.get(name), item, place.field(name))
    return _ordered(result, patch, place)


def _strategic_list(value: list[Any], patch: list[Any], place: FieldPlace) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if item != {"$patch": "replace"}]
    if place.kind == "set":
        return [*value, *(item for item in patch if item not in value)]
    if place.kind == "atomic":
        return copy.deepcopy(patch)
    result = list(value)
    for item in patch:
        at = next((i for i, one in enumerate(result) if place.key(one) == place.key(item)), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(strategic({}, item, place.item()))
        else:
            result[at] = strategic(result[at], item, place.item())
    return result


def _ordered(result: Json, patch: Json, place: FieldPlace) -> Json:
    for name, order in patch.items():
        field = name.partition("/")[2]
        if not name.startswith("$setElementOrder/") or field not in result:
            continue
        inner = place.field(field)
        rank = {inner.key(item) if isinstance(item, dict) else item: at for at, item in enumerate(order)}
        result[field] = sorted(
            result[field], key=lambda one: rank.get(inner.key(one) if isinstance(one, dict) else one, len(rank))
        )
    return result


def apply_to(value: Json, media: str, patch: Any, place: FieldPlace, custom: bool) -> Json:
    """`value` after a patch of that media type (not server-side apply). Failure 415: not for this resource."""
    if media == JSON:
        if not isinstance(patch, list):
            raise bad_request("a JSON patch is a list of operations")
        return json_patch(value, patch)
    if not isinstance(patch, dict):
        raise bad_request("a merge patch is an object")
    if media == MERGE:
        return dict(merge(value, patch))
    if media == STRATEGIC and not custom:
        return dict(strategic(value, patch, place))
    supported = [JSON, MERGE, APPLY] if custom else [JSON, MERGE, STRATEGIC, APPLY]
    raise unsupported_media(media, supported)
