"""What a worker keeps of a value that others refer to, and of a reference to what lies elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from resilin.distributed.work.future import Future
from resilin.rpc.serialization.remote_errors import Told
from resilin.rpc.worker_info import WorkerInfo


class GloballyUniqueId(NamedTuple):
    """Names a reference or a fork: who made it, and its number there."""

    created_on: int
    local_id: int

    def __str__(self) -> str:
        return f"GloballyUniqueId(created_on={self.created_on}, local_id={self.local_id})"


class OwnedValue:
    """A value that others refer to, at its owner."""

    is_owner = True

    def __init__(self, id: GloballyUniqueId, owner: WorkerInfo) -> None:
        self.id, self.owner = id, owner
        self.value: Future[Any] = Future()
        self.creation: Future[Any] = self.value
        self.profiled = False
        self.confirmed = True
        self.begun = False  # the call that makes it has come
        self.error: BaseException | None = None
        self.told: Told | None = None
        """What the function that was to make it has raised, as others are told: it is no other error at its owner."""

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Take what has come of its making; nothing where its maker was lost before, and others have been told."""
        if not self.value.done():
            self.value.settle(value, error)

    def __str__(self) -> str:
        return f"OwnerRRef({self.id})"


@dataclass
class Recipe:
    """How the maker of a value makes it again: what `remote` was called with."""

    function: Any
    args: Any
    kwargs: Any
    timeout: float
    lock: Any = field(default_factory=threading.Lock)
    """Held by who makes it again."""


class UserReference:
    """A reference to what lies elsewhere."""

    is_owner = False

    def __init__(self, id: GloballyUniqueId, fork: GloballyUniqueId, owner: WorkerInfo, turn: int) -> None:
        self.id, self.fork, self.owner = id, fork, owner
        self.turn = turn
        """How many processes had been the owner before the one that has the value."""
        self.creation: Future[Any] = Future()
        self.profiled = False
        """Whether its owner tells with `creation` what that did."""
        self.confirmed = False
        self.error: BaseException | None = None
        """Why it refers to nothing: its creation failed, or its owner is gone."""
        self.recipe: Recipe | None = None
        """How it is made again when its owner is gone; None: it is not."""
        self.children = 0  # forks of it that are not accepted yet
        self.dropped = False  # nobody here holds it any more
        self.deleted = False  # the owner is told
        self.waiting: list[Callable[[], None]] = []  # for its confirmation

    def __str__(self) -> str:
        return f"UserRRef(RRefId = {self.id}, ForkId = {self.fork})"
