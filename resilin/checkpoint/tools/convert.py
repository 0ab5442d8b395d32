"""A state from one form into another."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from resilin.checkpoint import folder as folders
from resilin.checkpoint import weights
from resilin.checkpoint.open_storage import open_parent, open_storage
from resilin.checkpoint.saving import save
from resilin.checkpoint.storage import Storage
from resilin.checkpoint.tools.states import Leaf, SavedState, with_leaves
from resilin.core.tensor import wrap
from resilin.errors import UsageError

_SHOWN = 10  # names in a message


@dataclass(frozen=True)
class Converted:
    """What was written. left_out: names of values that are no tensors, which safetensors cannot hold."""

    path: str
    tensors: int
    nbytes: int
    left_out: tuple[str, ...] = ()


def to_weights(
    state: SavedState, path: str | os.PathLike[str], max_shard_bytes: int = weights.MAX_SHARD_BYTES
) -> Converted:
    """Write the tensors of `state` as `save_safetensors` does, a block at a time.

    UsageError when there are none, and in the folder of a checkpoint, which would take them away when it is deleted.
    """
    tensors, values = state.named()
    if not tensors:
        raise UsageError(f"{state.path} has no tensors to write")
    storage = open_parent(path)[0] if os.fspath(path).endswith(".safetensors") else open_storage(path)
    if folders.read_head(storage, "") is not None:
        raise UsageError(f"{storage.root} is a checkpoint, whose files come and go with it: write to another place")
    weights.write_weights(tensors, path, max_shard_bytes=max_shard_bytes)
    return Converted(os.fspath(path), len(tensors), _nbytes(tensors.values()), tuple(values))


def to_checkpoint(state: SavedState, path: str | os.PathLike[str], step: int | None = None) -> Converted:
    """Write `state` as a checkpoint: of `step` if given, or of the step that `path` names, as run/step-9, into run.

    All of it is in memory meanwhile. UsageError when both are given and differ; when that is the checkpoint that it is
    read from, which would lose what is left out, or lies in it; where a checkpoint is already; and where it would be
    taken for one of other checkpoints there.
    """
    parent, named = folders.named_step(path)
    if named is not None and step not in (None, named):
        raise UsageError(
            f"{os.fspath(path)} has the name of step {named}, and {state.path} is of step {step}: write to a place of "
            "another name"
        )
    path, step = (path, step) if named is None else (parent, named)
    storage = folders.opened_to_save(path)
    _check_apart(storage.full("" if step is None else folders.step_name(step)), state)
    _check_free(storage, step)
    tensors = [value for _, value in state.items() if isinstance(value, Leaf)]
    written = save(path, with_leaves(state.tree, _in_memory), step=step)
    return Converted(written, len(tensors), _nbytes(tensors))


def _check_apart(place: str, state: SavedState) -> None:
    if _real(place) == _real(state.path):
        raise UsageError(f"{place} is what is read, and would be replaced: write to another place")
    if state.kind == "checkpoint" and _real(place).startswith(f"{_real(state.path)}/"):
        raise UsageError(f"{place} lies in {state.path}, which is read: write to another place")


def _check_free(storage: Storage, step: int | None) -> None:
    """UsageError unless one of `step` may be written: torn ones at its place are replaced."""
    own = "" if step is None else folders.step_name(step)
    found = {one.name: one for one in folders.list_checkpoints(storage)}
    if own in found and (found[own].is_complete or found[own].unreadable):
        raise UsageError(
            f"{storage.full(own)} is a checkpoint already, and what is converted replaces none: delete it, or write to "
            "another place"
        )
    if step is not None and "" in found:
        raise UsageError(f"{storage.root} is a checkpoint itself, and would hold another: write to another place")
    steps = [name for name in found if name]
    if step is None and steps:
        raise UsageError(
            f"{storage.root} holds the checkpoints {_shown(steps)}, and what is written there would be the newest of "
            "them: write to another place"
        )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _real(path: str) -> str:
    return path if "://" in path else os.path.realpath(path)


def _nbytes(tensors: Iterable[Leaf]) -> int:
    return sum(leaf.numel() * leaf.dtype.itemsize for leaf in tensors)


def _in_memory(value: Any) -> Any:
    if not isinstance(value, Leaf):
        return value
    return value.array() if value.is_array else wrap(value.array())
