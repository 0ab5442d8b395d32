"""A state at rest, whatever wrote it: its names, its plain values, and its tensors, which are read in ranges."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from resilin.checkpoint import folder as folders
from resilin.checkpoint import safetensors, weights
from resilin.checkpoint.manifest import Manifest
from resilin.checkpoint.matching import Ref, stored_tree
from resilin.checkpoint.open_storage import open_parent
from resilin.checkpoint.reading import Reader, Stored
from resilin.checkpoint.safetensors import Entry
from resilin.checkpoint.storage import Reading, Storage, steady
from resilin.checkpoint.torch_files import import_torch
from resilin.core import trees
from resilin.core.dtype import dtype as DType
from resilin.core.tensor import Tensor
from resilin.errors import CorruptFile, StorageMissing, UsageError

MAX_NAMES = 10_000_000
_MAX_DEPTH = 300
TORCH: Final = (".pt", ".pth", ".bin", ".ckpt")
_WEIGHTS = (".safetensors", ".safetensors.index.json")


@dataclass(frozen=True)
class Leaf:
    """A tensor of a state, or an array of numpy's.

    read: (start, stop) -> these elements, in C order, as a flat array, which may share memory with the state.
    """

    dtype: DType
    shape: tuple[int, ...]
    read: Callable[[int, int], Any]
    is_array: bool = False

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def ranges(self, chunk_bytes: int = safetensors.CHUNK_BYTES) -> Iterator[tuple[int, int]]:
        """The elements in ranges of at most `chunk_bytes`."""
        step = max(1, chunk_bytes // self.dtype.itemsize)
        for start in range(0, self.numel(), step):
            yield start, min(start + step, self.numel())

    def pieces(self) -> Iterator[memoryview]:
        """All bytes, a range at a time."""
        for start, stop in self.ranges():
            yield from safetensors.chunks(np.ascontiguousarray(self.read(start, stop)))

    def array(self) -> Any:
        """All of it in memory of its own."""
        made = np.empty(self.numel(), self.dtype.np)
        for start, stop in self.ranges():
            made[start:stop] = self.read(start, stop)
        return made.reshape(self.shape)


@dataclass(frozen=True)
class SavedState:
    """What lies at `path`. kind: "checkpoint", "safetensors" or "torch". tree: nested containers with a Leaf for each
    tensor. step: of a checkpoint that has one. name: of the one value that the tree is when it is no container."""

    path: str
    kind: str
    tree: Any
    step: int | None = None
    name: str = ""

    def part(self, key: str) -> SavedState:
        """The state below `key`, names with "/" between them, or in them; "/" at its end says nothing more.

        UsageError says what is there instead.
        """
        tree, name, left = self.tree, self.name, key.split("/")
        while left:
            names = {str(each): each for each in tree} if isinstance(tree, dict) else {}
            heads = ("/".join(left[:count]) for count in range(len(left), 0, -1))
            found = next((head for head in heads if head in names), None)
            if found is None and not any(left):
                break
            if found is None:
                where = repr(left[0]) if left[0] else "the slash without a name before it"
                there = ", ".join(sorted(names)[:10]) or "no names"
                raise UsageError(f"{self.path} has no {key!r:.100}: at {where} there are {there}")
            tree, name, left = tree[names[found]], found, left[found.count("/") + 1 :]
        return SavedState(self.path, self.kind, tree, self.step, name)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Its tensors, each a Leaf, and other values, with their names: keys and places with "/" between them."""
        trees.check_shared(self.tree, self.path)
        root = "" if isinstance(self.tree, dict | list | tuple) else self.name
        for count, item in enumerate(_walk(self.tree, root)):
            if count >= MAX_NAMES:  # containers that hold one another again and again need few bytes
                raise UsageError(f"{self.path} has more than {MAX_NAMES} names")
            yield item

    def named(self) -> tuple[dict[str, Leaf], dict[str, Any]]:
        """Its tensors, and its other values, by their names. UsageError when two have the same."""
        tensors: dict[str, Leaf] = {}
        values: dict[str, Any] = {}
        for name, value in self.items():
            if name in tensors or name in values:
                raise UsageError(
                    f"{self.path} has two things that are called {name!r:.100}, as of keys 'a/b' beside 'a' and 'b', "
                    "or 1 and '1'; take what lies below another name (--key)"
                )
            if isinstance(value, Leaf):
                tensors[name] = value
            else:
                values[name] = value
        return tensors, values


def _walk(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > _MAX_DEPTH:
        raise UsageError(f"a state is nested too deeply, or contains itself, at {name[:200]}")
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _walk(item, f"{name}/{key}" if name else str(key), depth + 1)
    elif isinstance(value, list | tuple) and value:
        for place, item in enumerate(value):
            yield from _walk(item, f"{name}/{place}" if name else str(place), depth + 1)
    else:
        yield name, value


def with_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """`tree` with `change` of what is no container at its places; what is one object there is one object here."""
    made: dict[int, Any] = {}

    def visit(value: Any, depth: int) -> Any:
        if type(value) not in (dict, OrderedDict, list, tuple):
            return change(value)
        if depth > _MAX_DEPTH:
            raise UsageError("a state is nested too deeply, or contains itself")
        if id(value) not in made:
            if isinstance(value, dict):
                copy: Any = type(value)((key, visit(item, depth + 1)) for key, item in value.items())
                if hasattr(value, "_metadata"):
                    copy._metadata = value._metadata
            else:
                copy = type(value)([visit(item, depth + 1) for item in value])
            made[id(value)] = copy
        return made[id(value)]

    return visit(tree, 0)


def open_state(path: str | os.PathLike[str], step: int | None = None) -> SavedState:
    """The state at a path or URL: a checkpoint (of `step`, or the newest complete one of a folder), safetensors
    weights (a file, an index, or a folder of them), or a file of torch.save.

    Weights are read when their elements are asked for: CheckpointError when they were replaced since. Raises
    StorageMissing when there is nothing, CheckpointError when there is none of these, UsageError for a step of what has
    none, and what reading the one that is there raises.
    """
    text = os.fspath(path)
    if step is None and text.endswith(TORCH):
        return SavedState(text, "torch", with_leaves(import_torch(text), _leaf))
    if step is None and text.endswith(_WEIGHTS):
        return SavedState(text, "safetensors", _weights(text))
    storage = folders.opened(text)
    if step is not None and _has_no_steps(text, storage):
        raise UsageError(f"{text} is no folder of checkpoints, and only those have steps: leave the step out")
    if step is None and (storage.exists(weights.INDEX) or storage.exists(weights.SINGLE)):
        return SavedState(text, "safetensors", _weights(text))
    if "://" not in storage.root and os.path.isfile(storage.root):
        raise UsageError(f"{text} is a file of no known kind: expected {', '.join(TORCH + _WEIGHTS)}, or a folder")
    check_there(storage, step)
    return _open_checkpoint(storage, step)


def _has_no_steps(text: str, storage: Storage) -> bool:
    """Whether a file lies there, or a folder of weights without a checkpoint of a step."""
    if "://" not in storage.root:
        is_file = os.path.isfile(storage.root)
    else:
        is_file = text.endswith(TORCH + _WEIGHTS) and (at := open_parent(text))[0].exists(at[1])
    if is_file:
        return True
    is_hub = storage.exists(weights.INDEX) or storage.exists(weights.SINGLE)
    return is_hub and all(one.step is None for one in folders.list_checkpoints(storage))


def check_there(storage: Storage, step: int | None = None) -> None:
    """StorageMissing when there is nothing under a path, or of a step. UsageError for a file, or what is no step."""
    step = folders.checked_step(step)
    folders.check_no_file(storage)
    for folder in ("",) if step is None else ("", folders.step_name(step)):
        if not storage.list(folder):
            raise StorageMissing(f"{storage.full(folder)}: there is nothing", storage.full(folder))


def _open_checkpoint(storage: Storage, step: int | None) -> SavedState:
    folder, manifest = folders.open_complete(storage, step)
    return SavedState(storage.full(folder), "checkpoint", _checkpoint(storage, folder, manifest), manifest.head.step)


def _checkpoint(storage: Storage, folder: str, manifest: Manifest) -> Any:
    reader = Reader(storage, folder, manifest)

    def leaf(value: Any) -> Any:
        if not isinstance(value, Ref):
            return value
        stored = Stored(reader, value.number)
        return Leaf(stored.dtype, stored.shape, lambda a, b: stored.part(a, b).numpy(), value.is_array)

    return with_leaves(stored_tree(manifest, storage.full(folder)), leaf)


def _weights(path: str) -> dict[str, Leaf]:
    """Every read looks whether file and index are still those that were opened, so no two versions are mixed."""
    index: list[Reading] = []
    files = weights.weight_files(path, None, index)
    found: dict[str, Leaf] = {}
    for file, keys in files.tensors.items():
        source = Reading(files.storage, file)
        with steady([*index, source]):
            made = safetensors.read_layout(source)
            for key in made.entries if keys is None else keys:
                if key not in made.entries:
                    raise CorruptFile(
                        f"{source.name} has no tensor {key!r:.100}, which the index says it has", source.name
                    )
                found[key] = _weight(source, made[key], [*index, source])
    return found


def _weight(source: Reading, entry: Entry, sources: Sequence[Reading]) -> Leaf:
    def read(start: int, stop: int) -> Any:
        with steady(sources):
            return safetensors.read(source, entry, start, stop)

    return Leaf(entry.dtype, entry.shape, read)


def _leaf(value: Any) -> Any:
    """For a state in memory."""
    if not isinstance(value, Tensor):
        return value
    array: Any = value.detach().numpy()
    return Leaf(value.dtype, tuple(value.shape), lambda a, b: array.flat[a:b])
