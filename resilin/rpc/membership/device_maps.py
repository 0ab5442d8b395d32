"""Check the device maps of all workers of a group against what each worker has, as PyTorch does."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence

from resilin.core import device as devices
from resilin.errors import UsageError
from resilin.rpc.membership.membership import WorkerRecord

_ALWAYS = ("sim",)  # types that need no library


def counts(named: Iterable[str]) -> dict[str, int]:
    """Return how many devices there are here of each type that is in use, or that `named` devices are of.

    CUDA is not loaded to count what nobody names: its number is missing then, and not checked by others.
    """
    types = {each.partition(":")[0] for each in named} - {"cpu"}
    found = {}
    for kind in sorted({*types, *_ALWAYS, "cuda"}):
        backend = devices.loaded_backend_of(kind)
        if backend is None and kind in types:
            try:
                backend = devices.backend_of(kind)
            except RuntimeError:
                found[kind] = 0
        if backend is not None:
            found[kind] = backend.count()
        elif kind == "cuda" and importlib.util.find_spec("cupy") is None:
            found[kind] = 0
    return found


def check(members: Sequence[WorkerRecord], is_static: bool) -> None:
    """Raise UsageError (a ValueError) for the first worker whose devices or device maps cannot be.

    In a dynamic group a map may name a worker that has not come yet.
    """
    by_name = {member.name: member for member in members}
    for member in members:
        named = list(member.devices)
        if len(set(named)) != len(named):
            raise UsageError(f"Node {member.name} has duplicated devices\ndevices = {named}")
        if not _exist(named, member.device_counts):
            raise UsageError(
                f"Node {member.name} has devices with invalid indices\ndevices = {named}\n"
                f"device count = {dict(member.device_counts)}"
            )
    for member in members:
        if is_static and not set(member.device_maps) <= set(by_name):
            raise UsageError(
                f"Node {member.name} has invalid target node names in its device maps\n"
                f"device maps = {list(member.device_maps)}\nnode names = {list(by_name)}"
            )
        for to, device_map in member.device_maps.items():
            _check_map(member, to, device_map, by_name.get(to))


def _check_map(source: WorkerRecord, to: str, device_map: Mapping[str, str], target: WorkerRecord | None) -> None:
    shown = f"in its device map for {to}\ndevice map = {dict(device_map)}\n"
    if len(set(device_map.values())) != len(device_map):
        raise UsageError(f"Node {source.name} has duplicated target devices {shown}")
    for kind, member, used in (("source", source, device_map.keys()), ("target", target, device_map.values())):
        if member is None:
            continue
        if member.devices:
            if not set(used) <= {*member.devices}:
                raise UsageError(
                    f"Node {source.name} has unexpected {kind} devices {shown}devices = {list(member.devices)}"
                )
        elif not _exist(used, member.device_counts):
            raise UsageError(
                f"Node {source.name} has {kind} devices with invalid indices {shown}"
                f"device count = {dict(member.device_counts)}"
            )


def check_targets(me: WorkerRecord, members: Sequence[WorkerRecord]) -> None:
    """Raise UsageError where a worker maps onto a device that this one, `me`, does not have. Loads its library."""
    for member in members:
        for name in member.device_maps.get(me.name, {}).values():
            try:
                devices.present(name)
            except RuntimeError as error:
                raise UsageError(
                    f"Node {member.name} has target devices with invalid indices in its device map for {me.name}\n"
                    f"device map = {dict(member.device_maps[me.name])}\n{error}"
                ) from None


def _exist(names: Iterable[str], counted: Mapping[str, int]) -> bool:
    for name in names:
        kind, _, number = name.partition(":")
        if kind != "cpu" and kind in counted and int(number or 0) >= counted[kind]:
            return False
    return True
