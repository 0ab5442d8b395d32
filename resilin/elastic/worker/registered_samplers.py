"""The samplers of a State, also those that it was given as loaders, and which State a sampler is in."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from resilin.data.elastic_sampler import ElasticSampler
from resilin.data.shard_batches import ShardBatches
from resilin.errors import UsageError

_owners: weakref.WeakKeyDictionary[ElasticSampler, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def loaders(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `objects` that are DataLoaders over an ElasticSampler. UsageError for one over something else."""
    return {name: thing for name, thing in objects.items() if _is_loader(name, thing)}


def _is_loader(name: str, thing: Any) -> bool:
    # by its attributes: the class is in a module that loads multiprocessing, which most workers can do without
    if hasattr(thing, "state_dict") or not (hasattr(thing, "batch_sampler") and hasattr(thing, "dataset")):
        return False
    if not isinstance(thing.batch_sampler, ShardBatches):
        raise UsageError(
            f"State: the loader {name!r} keeps its place in the data to itself, so a change of the world would lose "
            "it; make it with DataLoader(data, batch_sampler=ElasticSampler(len(data), batch_size=...))"
        )
    return True


def samplers(objects: Mapping[str, Any], owner: Any) -> list[ElasticSampler]:
    """The samplers among `objects`, each once, which from now on belong to `owner`."""
    found = {id(thing): thing for thing in objects.values() if isinstance(thing, ElasticSampler)}
    for sampler in found.values():
        _owners[sampler] = weakref.ref(owner)
    return list(found.values())


def owner_of(sampler: ElasticSampler) -> Any:
    """The State that `sampler` is registered in, or None."""
    found = _owners.get(sampler)
    return found() if found is not None else None
