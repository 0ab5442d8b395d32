"""`load`: a checkpoint into state that is there, or as a tree of new tensors; at any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np

from resilin._base import trace
from resilin.checkpoint import folder
from resilin.checkpoint import manifest as manifests
from resilin.checkpoint.collective import Ranks
from resilin.checkpoint.collective_read import fill
from resilin.checkpoint.flat import Flat
from resilin.checkpoint.folder import Root
from resilin.checkpoint.manifest import Manifest
from resilin.checkpoint.matching import Matching, stored_tree
from resilin.checkpoint.reading import Reader
from resilin.checkpoint.storage import Storage
from resilin.core.argument_checks import flag


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load` did.

    path, step: of the checkpoint. missing_keys: paths in the state that it had not; unexpected_keys: paths in it that
    the state had not. Both are empty with strict=True.
    """

    path: str
    step: int | None
    missing_keys: list[str]
    unexpected_keys: list[str]


def load(
    path: Root,
    state: Any = None,
    *,
    strict: bool = True,
    step: SupportsIndex | None = None,
    group: Any = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Load a checkpoint: into `state`, in place, or as a tree. Every rank of the group calls it, alike.

    path:   a checkpoint, or the folder of several (or `latest` in it): its newest complete one, or that of `step`.
    state:  a dict or list as it was given to `save`, or one object. Tensors are filled where they lie (a Sliced: what
            it holds), objects get theirs, whatever its keys, by `load_sharded_state_dict`, `load_state_dict` or
            `set_state`, plain values are replaced in their dict or list. An empty dict or list and None say nothing of
            what belongs there, and get all of it; so does a Counter or a defaultdict of plain values. None as the
            whole state: a tree of new tensors on the CPU is returned, with dicts in the place of objects and whole
            tensors in that of Sliced.
    strict: every tensor, object, key of a dict and place of a list must be in both, tensors with equal dtypes. False:
            what is in one only is left alone and reported, other dtypes are converted; other shapes, and a dict or
            list here that is none there, are still refused.
    group:  as for `save`; it may have any number of ranks.

    Returns the tree, or `Loaded`. Whoever saved it, in how many pieces and with what of it divided, any rank gets what
    it wants: of whole tensors each rank reads a share of the blocks and sends it to the others; of divided ones, each
    reads its own. Everything is checked by hash as it is read. Memory beyond the state: two blocks of 16 MiB.

    Raises on all ranks, before anything is changed: UsageTypeError for a `strict` that is neither True nor False,
    CheckpointError when there is no complete checkpoint,
    CheckpointMismatch when it is of another state (lists what is missing, unexpected and different), CorruptFile for a
    manifest that is damaged or files that are cut. Raised when part of the state has been overwritten: CorruptFile for
    damaged bytes (names file, tensor and elements), the storage's errors, and what collectives raise when a rank is
    lost; then load another checkpoint before going on.
    """
    with trace.span("checkpoint.load", trace.SpanKind.CHECKPOINT):
        ranks = Ranks.of(group)
        storage, where, manifest = _find(ranks, path, state, strict, step, options)
        full = storage.full(where)
        reader = Reader(storage, where, manifest)
        stored = stored_tree(manifest, full)
        if state is None:
            tree, targets = _tree(reader, stored)
            fill(ranks, reader, targets)
            return tree
        matching = _match(ranks, reader, state, stored, strict, full)
        fill(ranks, reader, matching.targets)
        ranks.together("checkpoint.load", lambda: _finish(reader, matching))
    return Loaded(full, manifest.head.step, matching.missing, matching.unexpected)


def _find(
    ranks: Ranks, path: Root, state: Any, strict: bool, step: SupportsIndex | None, options: Mapping[str, Any] | None
) -> tuple[Storage, str, Manifest]:
    """The checkpoint that is to be loaded: found and read by rank 0, so that all take the same."""

    def look() -> tuple[Storage, int | None, bool]:
        return folder.opened(path, options), folder.checked_step(step), flag("checkpoint.load: strict", strict)

    def find() -> tuple[str, bytes]:
        where, manifest = folder.open_complete(storage, wanted)
        return where, manifest.text()

    (storage, wanted, is_strict), _ = ranks.together("checkpoint.load", look)
    given = "None" if state is None else "given"
    ranks.agree("checkpoint.load", {"path": storage.root, "step": wanted, "strict": is_strict, "state": given})
    where, text = ranks.of_first("checkpoint.load", find)
    return storage, where, manifests.parse(text, storage.full(folder.joined(where, manifests.NAME)))


def _tree(reader: Reader, stored: Any) -> tuple[Any, Mapping[int, list[Flat]]]:
    matching = Matching(reader, strict=True)
    return matching.value(stored), matching.targets


def _match(ranks: Ranks, reader: Reader, state: Any, stored: Any, strict: bool, path: str) -> Matching:
    def match() -> Matching:
        made = Matching(reader, strict)
        made.match_root(state, stored)
        made.check(path)
        return made

    matching, _ = ranks.together("checkpoint.load", match)
    again, _ = ranks.together("checkpoint.load", matching.prepare, lambda made: made)
    if again:
        matching, _ = ranks.together("checkpoint.load", match)
    ranks.agree("checkpoint.load", {"tensors": [reader.manifest.tensors[n].name for n in sorted(matching.targets)]})
    return matching


def _finish(reader: Reader, matching: Matching) -> None:
    for number, sliced in matching.slices:
        flat = Flat(sliced.tensor)
        step = max(1, reader.manifest.head.block_bytes // flat.itemsize)
        for start in range(0, flat.size, step):
            stop = min(start + step, flat.size)
            view = flat.view(start, stop)
            out = np.empty(stop - start, sliced.dtype.np) if view is None else view
            reader.part_into(number, sliced.start + start, out)
            if view is None:
                flat.write(start, out)
        flat.finish()
    matching.apply()
