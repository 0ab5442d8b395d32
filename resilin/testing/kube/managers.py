"""Who manages which fields: server-side apply with its conflicts, and what plain writes take over from others. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilin.testing.kube import field_sets
from resilin.testing.kube.failures import Failure, Json
from resilin.testing.kube.field_sets import Leaves, Path
from resilin.testing.kube.topology import FieldPlace


@dataclass(frozen=True)
class Writer:
    """Who writes, and by which way: a manager is known by all of these."""

    manager: str
    operation: str  # Apply or Update
    api_version: str
    subresource: str = ""

    def entry(self, paths: set[Path], time: str) -> Json:
        """Its entry in `metadata.managedFields`."""
        head = {"manager": self.manager, "operation": self.operation, "apiVersion": self.api_version, "time": time}
        tail = {"subresource": self.subresource} if self.subresource else {}
        return {**head, "fieldsType": "FieldsV1", "fieldsV1": field_sets.encode(paths), **tail}


Managed = dict[Writer, tuple[set[Path], str]]  # the fields of each, and since when


def read(value: Json | None) -> Managed:
    """The managers of an object."""
    found: Managed = {}
    for entry in () if value is None else value["metadata"].get("managedFields") or ():
        who = Writer(entry["manager"], entry["operation"], entry["apiVersion"], entry.get("subresource", ""))
        found[who] = (field_sets.decode(entry.get("fieldsV1", {})), entry.get("time", ""))
    return found


def write(value: Json, managed: Managed) -> None:
    """Put the managers into an object, in place; those that have no field left are gone."""
    entries = [who.entry(paths, time) for who, (paths, time) in managed.items() if paths]
    value["metadata"].pop("managedFields", None)
    if entries:
        value["metadata"]["managedFields"] = entries


def note_update(old: Json | None, new: Json, schema: Any, writer: Writer, time: str) -> None:
    """Record a plain write in `new`: its writer takes over every field that it has changed or added."""
    before = {} if old is None else field_sets.leaves(old, schema)
    after = field_sets.leaves(new, schema)
    changed = {path for path, item in after.items() if path not in before or before[path] != item}
    managed = _without(read(old), changed, after)
    if changed:
        managed[writer] = (managed.get(writer, (set(), ""))[0] | changed, time)
    write(new, managed)


def _without(managed: Managed, taken: set[Path], after: Leaves, keep: Writer | None = None) -> Managed:
    """The managers without what another takes (but not from `keep`) and what is no longer there."""
    return {
        who: ({path for path in paths if path in after and (path not in taken or who == keep)}, time)
        for who, (paths, time) in managed.items()
    }


def apply(old: Json, wanted: Json, schema: Any, writer: Writer, time: str, force: bool) -> Json:
    """What server-side apply makes of `old`. Failure 409: others manage fields and want them otherwise."""
    managed = read(old)
    asked, before = field_sets.leaves(wanted, schema), field_sets.leaves(old, schema)
    conflicts = _conflicts(managed, writer, asked, before)
    if conflicts and not force:
        raise _conflict(conflicts)
    result: Json = merge(copy.deepcopy(old), wanted, FieldPlace(schema))
    mine, since = managed.get(writer, (set(), ""))
    others = set().union(*(paths for who, (paths, _) in managed.items() if who != writer))
    left = mine - asked.keys() - others
    field_sets.remove(result, FieldPlace(schema), left)
    lost = {path for paths in conflicts.values() for path in paths}
    managed = _without(managed, lost, field_sets.leaves(result, schema), keep=writer)
    managed.pop(writer, None)
    managed[writer] = (set(asked), since if mine == asked.keys() else time)
    write(result, managed)
    return result


def _conflicts(managed: Managed, writer: Writer, asked: Leaves, before: Leaves) -> dict[Writer, list[Path]]:
    found: dict[Writer, list[Path]] = {}
    for who, (paths, _) in managed.items():
        if who == writer:
            continue
        clashing = [p for p in sorted(paths & asked.keys()) if p[-1] != "." and before.get(p) != asked[p]]
        if clashing:
            found[who] = clashing
    return found


def _conflict(conflicts: Mapping[Writer, list[Path]]) -> Failure:
    causes, texts = [], []
    for who, paths in conflicts.items():
        sub = f' with subresource "{who.subresource}"' if who.subresource else ""
        by = f'conflict with "{who.manager}"{sub} using {who.api_version}'
        names = [field_sets.shown(path) for path in paths]
        causes += [{"reason": "FieldManagerConflict", "message": by, "field": name} for name in names]
        texts.append(f"{by}: {names[0]}" if len(names) == 1 else f"{by}:\n- " + "\n- ".join(names))
    count = len(causes)
    head = f"Apply failed with {count} conflict{'s' if count > 1 else ''}: "
    return Failure(409, "Conflict", head + "\n".join(texts), {"causes": causes})


def merge(live: Any, wanted: Any, place: FieldPlace) -> Any:
    """`live` with everything that is in `wanted`: objects and keyed lists item by item, all else as a whole."""
    if isinstance(live, dict) and isinstance(wanted, dict) and not place.atomic:
        for name, item in wanted.items():
            live[name] = merge(live.get(name), item, place.field(name))
        return live
    if isinstance(wanted, list) and place.kind in ("map", "set"):
        return _merge_lists(live if isinstance(live, list) else [], wanted, place)
    return copy.deepcopy(wanted)


def _merge_lists(live: list[Any], wanted: list[Any], place: FieldPlace) -> list[Any]:
    """The items of `wanted` in their order, those of `live` alone where they stood among them."""
    by_key = {place.key(item): item for item in live}
    asked = {place.key(item) for item in wanted}
    result = [merge(by_key.get(place.key(item)), item, place.item()) for item in wanted]
    for index, item in enumerate(live):
        if place.key(item) not in asked:
            result.insert(min(index, len(result)), item)
    return result
