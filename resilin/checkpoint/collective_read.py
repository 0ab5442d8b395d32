"""Tensors that every rank wants whole: each rank reads a share of the blocks, and all get them from one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.checkpoint.collective import Ranks
from resilin.checkpoint.flat import Flat, as_bytes
from resilin.checkpoint.hashing import Hasher
from resilin.checkpoint.reading import HashedBlock, Reader
from resilin.checkpoint.safetensors import check_booleans
from resilin.core.tensor import wrap
from resilin.errors import CorruptFile

_ALONE_BYTES = 1 << 20  # larger blocks are sent from where they lie; smaller ones together, through a copy
Targets = Mapping[int, Sequence[Flat]]
"""Where each tensor of the checkpoint goes, by its number: the first is read into, the others are copies of it."""


def fill(ranks: Ranks, reader: Reader, targets: Targets) -> None:
    """Fill `targets`, of which every rank has the same numbers. Memory: two blocks at the most.

    Raises on all ranks what any of them finds wrong; some targets are filled then, others are not.
    """
    blocks = reader.blocks(targets)
    owners = _owners([block.nbytes for block in blocks], ranks.size)
    mine = [block for block, owner in zip(blocks, owners, strict=True) if owner == ranks.rank]
    ranks.together("checkpoint.load", lambda: _read(reader, ranks, mine, targets))
    if ranks.size > 1:
        _spread(ranks, blocks, owners, targets)
    for number, flats in targets.items():
        for other in flats[1:]:
            _copy(reader, number, flats[0], other)
        for flat in flats:
            flat.finish()


def _owners(sizes: Sequence[int], count: int) -> list[int]:
    """Who reads each block: runs of about equal bytes."""
    total, before, made = max(1, sum(sizes)), 0, []
    for size in sizes:
        made.append(min(count - 1, (2 * before + size) * count // (2 * total)))
        before += size
    return made


def _read(reader: Reader, ranks: Ranks, blocks: Sequence[HashedBlock], targets: Targets) -> None:
    """Read and check this rank's blocks, and its share of the files' headers."""
    for file in reader.manifest.files[ranks.rank :: ranks.size]:
        reader.check_header(file)
    begun: list[HashedBlock] = []
    with Hasher() as hasher:
        for run in reader.runs(blocks):
            view = targets[run[0].tensor][0].view(run[0].start, run[0].stop) if len(run) == 1 else None
            if view is None:
                _read_run(reader, run, targets)
                continue
            reader.read_into(run, as_bytes(view))
            hasher.begin(as_bytes(view))  # while the next one is read
            begun.append(run[0])
        for block in begun:
            reader.check(block, hasher.result())
    for block in begun:
        _check_booleans(reader, block, targets[block.tensor][0])


def _read_run(reader: Reader, run: Sequence[HashedBlock], targets: Targets) -> None:
    """Small blocks that lie together, or what does not lie contiguously in the host's memory: through a copy."""
    buffer = np.empty(sum(block.nbytes for block in run), np.uint8)
    reader.read_into(run, as_bytes(buffer))
    with Hasher() as hasher:
        at = 0
        for block in run:
            data = buffer[at : at + block.nbytes]
            hasher.begin(as_bytes(data))
            reader.check(block, hasher.result())
            typed = data.view(reader.manifest.tensors[block.tensor].dtype.np)
            if typed.dtype == np.bool_:
                check_booleans(typed, reader.name(block), reader.path(block.file))
            targets[block.tensor][0].write(block.start, typed)
            at += block.nbytes


def _check_booleans(reader: Reader, block: HashedBlock, flat: Flat) -> None:
    view = flat.view(block.start, block.stop)
    if view.dtype == np.bool_:
        try:
            check_booleans(view, reader.name(block), reader.path(block.file))
        except CorruptFile:
            view[...] = False  # nobody may compute with such bytes
            raise


# -- between ranks


def _spread(ranks: Ranks, blocks: Sequence[HashedBlock], owners: Sequence[int], targets: Targets) -> None:
    """Send every block from the rank that has read it to all others."""
    pack: list[HashedBlock] = []
    held = owner = 0
    for block, reader_rank in zip(blocks, owners, strict=True):
        flat = targets[block.tensor][0]
        alone = block.nbytes >= _ALONE_BYTES
        if pack and (alone or reader_rank != owner or held + block.nbytes > _ALONE_BYTES):
            _send_pack(ranks, pack, owner, targets)
            pack, held = [], 0
        owner = reader_rank
        if alone:
            _send(ranks, flat, block, owner)
        else:
            pack.append(block)
            held += block.nbytes
    if pack:
        _send_pack(ranks, pack, owner, targets)


def _send(ranks: Ranks, flat: Flat, block: HashedBlock, owner: int) -> None:
    view = flat.view(block.start, block.stop)
    data = flat.read(block.start, block.stop) if view is None else view
    if view is None and ranks.rank != owner:
        data = np.empty_like(data)
    dist.broadcast(wrap(data.view(np.uint8)), group=ranks.group, group_src=owner)
    if view is None and ranks.rank != owner:
        flat.write(block.start, data)


def _send_pack(ranks: Ranks, pack: Sequence[HashedBlock], owner: int, targets: Targets) -> None:
    buffer = np.empty(sum(block.nbytes for block in pack), np.uint8)
    if ranks.rank == owner:
        for block, data in _cut(pack, buffer):
            data[...] = targets[block.tensor][0].read(block.start, block.stop).view(np.uint8)
    dist.broadcast(wrap(buffer), group=ranks.group, group_src=owner)
    if ranks.rank != owner:
        for block, data in _cut(pack, buffer):
            flat = targets[block.tensor][0]
            flat.write(block.start, data.view(flat.dtype))


def _cut(pack: Sequence[HashedBlock], buffer: Any) -> list[tuple[HashedBlock, Any]]:
    made, at = [], 0
    for block in pack:
        made.append((block, buffer[at : at + block.nbytes]))
        at += block.nbytes
    return made


def _copy(reader: Reader, number: int, source: Flat, target: Flat) -> None:
    step = max(1, reader.manifest.head.block_bytes // max(1, source.itemsize))
    for start in range(0, source.size, step):
        target.write(start, source.read(start, min(start + step, source.size)))
