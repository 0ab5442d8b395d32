"""Says who holds the memory of a CUDA device, when someone asks or there is none left: it looks, and keeps no books.

Every array that the garbage collector knows is asked for its block; what a block is held as is the first of KINDS that
one of its arrays is.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from resilin.core.backends import counted_pool
from resilin.core.tensor import Parameter, Tensor

PARAMETER, GRADIENT, TENSOR, REST = KINDS = (
    "parameter",
    "gradient",
    "other tensor",
    "no tensor (kept for backward, or a temporary)",
)
LARGEST = 5  # groups of blocks that are named


@dataclass(frozen=True, kw_only=True)
class HeldBlock:
    """A block that arrays lie in. Sizes in bytes; dtype and shape are those of its largest array."""

    address: int
    size: int
    kind: str
    dtype: str
    shape: tuple[int, ...]


def held_blocks(array_type: type) -> list[HeldBlock]:
    """The blocks that arrays of `array_type` (CuPy's) lie in, the largest first."""
    things = gc.get_objects()
    kinds = dict(_named(things))
    arrays = {id(thing): thing for thing in things if issubclass(type(thing), array_type)}
    found: dict[int, tuple[int, HeldBlock, int]] = {}
    for key, array in arrays.items():
        if not array.size:
            continue
        memory = array.data.mem
        rank = kinds.get(key, KINDS.index(REST))
        before = found.get(memory.ptr)
        named, largest = (rank, 0) if before is None else (min(rank, before[0]), before[2])
        larger = array.nbytes > largest
        dtype, shape = (array.dtype.name, tuple(array.shape)) if larger else _of(before)
        block = HeldBlock(address=memory.ptr, size=memory.size, kind=KINDS[named], dtype=dtype, shape=shape)
        found[memory.ptr] = (named, block, max(largest, array.nbytes))
    return sorted((block for _, block, _ in found.values()), key=lambda block: (-block.size, block.address))


def _of(found: Any) -> tuple[str, tuple[int, ...]]:
    return found[1].dtype, found[1].shape


def _named(things: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """(id of an array, number of its kind) of all tensors; the gradients last, which are tensors, too."""
    tensors = [thing for thing in things if issubclass(type(thing), Tensor) and hasattr(thing, "_array")]
    for tensor in tensors:
        yield id(tensor._array), KINDS.index(PARAMETER if isinstance(tensor, Parameter) else TENSOR)
    for tensor in tensors:
        if tensor._grad is not None:
            yield id(tensor._grad._array), KINDS.index(GRADIENT)


def describe(array_type: type) -> str:
    """A line for each kind that there is, and for the largest groups of equal blocks."""
    blocks = held_blocks(array_type)
    lines = []
    for kind in KINDS:
        sizes = [block.size for block in blocks if block.kind == kind]
        if sizes:
            lines.append(f"  {sum(sizes):>16,} B  {len(sizes)} x {kind}")
    groups: Counter[tuple[Any, ...]] = Counter()
    for block in blocks:
        groups[block.kind, block.dtype, block.shape] += block.size
    for (kind, dtype, shape), size in groups.most_common(LARGEST):
        lines.append(f"  {size:>16,} B  {kind}: {dtype} {shape}")
    return "\n".join(["held by, and the largest of them:", *lines]) if lines else ""


counted_pool.HELD.append(lambda cupy: describe(cupy.ndarray))
