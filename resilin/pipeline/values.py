"""What stages hand to one another, taken apart: tensors, and the layout of everything around them.

A layout is what a receiver needs to put the value together again: nested tuples, lists and dicts with plain values,
and in the places of tensors their numbers. One tensor that stands in several places has one number, so that its
gradient is summed as it would be without a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from resilin.core import trees
from resilin.core.dtype import by_name
from resilin.core.state.versions import same_memory
from resilin.core.tensor import Tensor
from resilin.distributed.wire import object_codec
from resilin.distributed.wire.object_codec import Hole
from resilin.errors import DistError, UsageTypeError
from resilin.nn.modules.module import Module


class TensorLayout(NamedTuple):
    """What is known of a tensor before its bytes come."""

    shape: tuple[int, ...]
    dtype: str
    """Its name, without the module's."""
    wants_grad: bool
    in_parts: bool
    """Whether its gradient is sent back as the contributions to it, unsummed: it has other uses elsewhere."""
    is_alone: bool
    """Whether nothing else that is handed on shares its memory, so that who gets it may write it."""


@dataclass(frozen=True)
class ValueLayout:
    """A value without its tensors."""

    around: Any
    """The value with a Hole for each tensor."""
    tensors: tuple[TensorLayout, ...]

    @property
    def is_of_tensors(self) -> bool:
        """Whether there is nothing else in the value but tensors and None: then equal layouts stand for one another."""
        return all(leaf is None or type(leaf) is Hole for leaf in trees.flatten(self.around)[0])


def take_apart(
    value: Any, several: frozenset[int] = frozenset(), sharing: frozenset[int] = frozenset()
) -> tuple[list[Tensor], ValueLayout]:
    """Give the tensors in `value`, each once, and its layout.

    several: ids of those that go to other stages, too. sharing: ids of those with memory in common.
    """
    leaves, tree = trees.flatten(value)
    tensors: list[Tensor] = []
    numbers: dict[int, int] = {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            number = numbers.setdefault(id(leaf), len(tensors))
            if number == len(tensors):
                tensors.append(leaf)
            leaves[place] = Hole(number)
    told = tuple(
        TensorLayout(
            tuple(t._array.shape),
            t._array.dtype.name,
            bool(t._rg),
            bool(t._rg) and id(t) in several,
            id(t) not in several and id(t) not in sharing,
        )
        for t in tensors
    )
    return tensors, ValueLayout(trees.unflatten(leaves, tree), told)


def apart_from_buffers(tensors: list[Tensor], module: Module) -> list[Tensor]:
    """Give `tensors` with copies of those that are buffers of `module`, which its next micro-batch may change."""
    if all(tensor._rg for tensor in tensors):
        return tensors
    buffers = list(module.buffers())
    return [
        tensor.clone() if not tensor._rg and any(same_memory(tensor, each) for each in buffers) else tensor
        for tensor in tensors
    ]


def put_together(layout: ValueLayout, tensors: list[Tensor]) -> Any:
    """Give the value that `take_apart` took apart, of these tensors."""
    leaves, tree = trees.flatten(layout.around)
    return trees.unflatten([tensors[leaf] if isinstance(leaf, Hole) else leaf for leaf in leaves], tree)


def check(value: Any, what: str) -> None:
    """UsageTypeError for a value of which other processes cannot have something; `what` says whose it is."""
    _check(take_apart(value)[1], what)


def encode(layout: ValueLayout, what: str) -> bytes:
    """Write a layout. UsageTypeError for values that no other process can have, which names `what` they are of."""
    _check(layout, what)
    return object_codec.dump((layout.around, [tuple(each) for each in layout.tensors]))


def _check(layout: ValueLayout, what: str) -> None:
    if not layout.is_of_tensors:
        for leaf in trees.flatten(layout.around)[0]:
            reason = object_codec.refused(leaf)
            if reason is not None:
                raise UsageTypeError(f"{what}: a value of {type(leaf).__name__} cannot be sent: {reason}; {_ALLOWED}")


_ALLOWED = (
    "stages hand on tensors, None, numbers, texts and other plain values, in tuples, lists and dicts: compute others "
    "where they are used"
)


def decode(data: bytes) -> ValueLayout:
    """Read what `encode` wrote. DistError for anything else."""
    around, tensors = object_codec.load(data, weights_only=True)
    try:
        told = tuple(TensorLayout(tuple(shape), *others) for shape, *others in tensors)
    except (TypeError, ValueError) as error:
        raise DistError(f"a message between stages is malformed: {error}") from None
    return ValueLayout(around, told)


def empty_array(told: TensorLayout) -> np.ndarray[Any, Any]:
    """Give memory to receive a tensor in. DistError for a layout that no tensor has."""
    try:
        return np.empty(told.shape, by_name(told.dtype).np)
    except (TypeError, ValueError, AttributeError) as error:
        raise DistError(f"a message between stages announces a tensor that cannot be: {told}: {error}") from None
