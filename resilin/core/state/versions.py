"""What tensors over one memory share: the counters of its in-place writes, and the way from a base to its views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar


class Versioned(Protocol):
    """What is used here of a tensor: its counter of writes, and the node that made it."""

    _vc: list[Any] | None
    _node: Any


Base = TypeVar("Base", bound=Versioned)


class InferenceCount(list[Any]):
    """The counter of writes (`Tensor._vc`) of memory made in inference mode: its type is the mark."""

    __slots__ = ()


class View(Generic[Base]):
    """Where a view came from: `base`, the ops that lead from it, and the base's node when they were last recorded.

    `recorded` is False of a view made in no_grad or inference_mode, and of its views.
    """

    __slots__ = ("base", "chain", "recorded", "seen")

    def __init__(
        self, base: Base, chain: tuple[tuple[Any, tuple[Any, ...]], ...], seen: Any, recorded: bool = True
    ) -> None:
        self.base, self.chain, self.seen, self.recorded = base, chain, seen, recorded

    @property
    def outdated(self) -> bool:
        """Whether an in-place write has moved the base in the graph since the view was recorded."""
        return self.recorded and self.base._node is not self.seen


def count_of(tensor: Versioned) -> int:
    """How often the memory of `tensor` was written in place, as autograd counts it; of inference tensors, too."""
    vc = tensor._vc
    return 0 if vc is None else vc[0]


def share_version(tensor: Versioned) -> list[Any]:
    """The version counter of `tensor`'s storage, made when there is none."""
    if tensor._vc is None:
        tensor._vc = [0]
    return tensor._vc


def same_memory(one: Versioned, other: Versioned) -> bool:
    """Whether both are one tensor, views of one, or one taken out of the graph: a write in place changes both."""
    return one is other or (one._vc is not None and one._vc is other._vc)


def in_common(tensors: Iterable[Base]) -> list[Base]:
    """Those of different `tensors` whose memory another of them has, too."""
    counted = [(tensor, id(tensor._vc)) for tensor in tensors if tensor._vc is not None]
    found = Counter(count for _, count in counted)
    return [tensor for tensor, count in counted if found[count] > 1]


def share_writes(tensor: Versioned) -> list[int]:
    """The counter behind `_writes` of `tensor`'s memory, for another holder of that memory."""
    vc = share_version(tensor)
    if len(vc) == 1:
        vc.append([vc[0]])
    shared: list[int] = vc[1]
    return shared
