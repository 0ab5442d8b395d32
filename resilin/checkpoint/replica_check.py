"""Tensors that every rank holds: whether they are equal on all ranks."""

from __future__ import annotations

import hashlib

from resilin.checkpoint.collective import Ranks
from resilin.checkpoint.flat import Flat, as_bytes
from resilin.checkpoint.flatten_state import Gathered
from resilin.checkpoint.writing import BLOCK_BYTES
from resilin.errors import CollectiveMismatch

_SHOWN = 10  # names in a message


def compare(ranks: Ranks, gathered: Gathered) -> None:
    """CollectiveMismatch, on all ranks, names the tensors that are not equal bit by bit, and the ranks that differ.

    Every rank hashes all of every tensor that is no Sliced (SHA-256), a block at a time.
    """
    names = {one.name: number for number, one in enumerate(gathered.tensors) if number not in gathered.held}
    hashes, told = ranks.together(
        "checkpoint.save",
        lambda: {name: _hash(gathered.sources[number]) for name, number in names.items()},
        lambda made: list(made.values()),
    )
    differing = []
    for place, name in enumerate(hashes):
        ones = [rank for rank, said in enumerate(told) if said[place] != told[0][place]]
        if ones:
            differing.append(f"{name} (on rank {', '.join(map(str, ones))})")
    if differing:
        more = f", and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise CollectiveMismatch(
            f"checkpoint.save, rank {ranks.rank} of {ranks.size}: tensors that all ranks hold differ from rank 0's: "
            f"{', '.join(differing[:_SHOWN])}{more}. Nothing was saved; broadcast what should be equal, give what is "
            "each rank's own another name on each, or save with compare=False"
        )


def _hash(flat: Flat) -> str:
    hasher = hashlib.sha256()
    step = max(1, BLOCK_BYTES // max(1, flat.itemsize))
    for start in range(0, flat.size, step):
        hasher.update(as_bytes(flat.read(start, min(start + step, flat.size))))
    return hasher.hexdigest()
