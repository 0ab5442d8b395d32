"""A state from one form into another."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from resilin.checkpoint import folder as folders
from resilin.checkpoint import weights
from resilin.checkpoint.opening import open_storage
from resilin.checkpoint.saving import save
from resilin.checkpoint.tools.states import Leaf, State, with_leaves
from resilin.core.tensor import wrap
from resilin.errors import UsageError


@dataclass(frozen=True)
class Converted:
    """What was written. left_out: names of values that are no tensors, which safetensors cannot hold."""

    path: str
    tensors: int
    nbytes: int
    left_out: tuple[str, ...] = ()


def to_weights(state: State, path: str | os.PathLike[str], max_shard_bytes: int = weights.MAX_SHARD_BYTES) -> Converted:
    """Write the tensors of `state` as `save_safetensors` does, a block at a time. UsageError when there are none."""
    tensors, values = state.named()
    if not tensors:
        raise UsageError(f"{state.path} has no tensors to write")
    weights.write_weights(tensors, path, max_shard_bytes=max_shard_bytes)
    return Converted(os.fspath(path), len(tensors), _nbytes(tensors.values()), tuple(values))


def to_checkpoint(state: State, path: str | os.PathLike[str], step: int | None = None) -> Converted:
    """Write `state` as a checkpoint, of `step` if given. All of it is in memory meanwhile.

    UsageError when that is the checkpoint that it is read from, which would lose what is left out.
    """
    storage = open_storage(path)
    place = storage.full("" if step is None else folders.step_name(step))
    if _real(place) == _real(state.path):
        raise UsageError(f"{place} is what is read, and would be replaced: write to another place")
    tensors = [value for _, value in state.items() if isinstance(value, Leaf)]
    written = save(path, with_leaves(state.tree, _in_memory), step=step)
    return Converted(written, len(tensors), _nbytes(tensors))


def _real(path: str) -> str:
    return path if "://" in path else os.path.realpath(path)


def _nbytes(tensors: Iterable[Leaf]) -> int:
    return sum(leaf.numel() * leaf.dtype.itemsize for leaf in tensors)


def _in_memory(value: Any) -> Any:
    if not isinstance(value, Leaf):
        return value
    return value.array() if value.is_array else wrap(value.array())
