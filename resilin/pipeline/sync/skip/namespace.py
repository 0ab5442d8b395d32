"""Keep skip tensors of one name apart."""

from __future__ import annotations

import functools
import uuid
from typing import NamedTuple


@functools.total_ordering
class Namespace:
    """Isolate the names of skip tensors, by `layer.isolate(namespace)`. Copies are the same namespace."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = uuid.uuid4()

    def __repr__(self) -> str:
        return f"<Namespace '{self.id}'>"

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and self.id == other.id

    def __lt__(self, other: object) -> bool:
        return self.id < other.id if isinstance(other, Namespace) else NotImplemented


class SkipName(NamedTuple):
    """Name a skip tensor within a Sequential. `namespace` None: the one that all layers are in."""

    namespace: Namespace | None
    name: str
