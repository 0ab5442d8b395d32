"""Know the message that is on its way in this thread: classes of tensors and RRefs ask `now` when they are pickled."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from resilin.core.tensor import Tensor


class Peer(Protocol):
    """What a message must know of who gets it."""

    @property
    def id(self) -> int:
        """Return its id."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def channels(self) -> Mapping[str, str]:
        """Return what each of its channels `describe`s, by name."""

    @property
    def allows_closures(self) -> bool:
        """Return whether it takes functions whose code is sent."""

    def device_for(self, device: str) -> str | None:
        """Return the device there that tensors of `device` go to; None where nobody has said."""


class _Group:
    """A block that is growing."""

    __slots__ = ("device", "owner", "start", "stop", "target", "tensors")

    def __init__(self, owner: Any, start: int, stop: int, device: str, target: str) -> None:
        self.owner, self.start, self.stop, self.tensors = owner, start, stop, []  # type: ignore[var-annotated]
        self.device, self.target = device, target


class Outgoing:
    """A message that is made in this thread."""

    __slots__ = ("forks", "groups", "numbers", "peer", "requiring")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.groups: list[_Group] = []
        self.numbers: dict[int, int] = {}  # id of the memory's owner -> number of its group
        self.forks: list[Any] = []
        """What RRefs and channels have made for the receiver, and take back when the message is not sent."""
        self.requiring: list[Tensor] = []
        """Tensors in it that require gradients, in the order in which they are read, too."""

    def add(
        self, owner: Any, start: int, stop: int, tensor: Tensor, device: str = "cpu", target: str | None = None
    ) -> int:
        """Put `tensor`, which reaches those addresses of `owner`, into a block; return its number."""
        base = getattr(owner, "base", None)
        memory = id(owner if base is None else base)  # several arrays may be over one buffer of somebody else's
        number = self.numbers.get(memory)
        if number is None:
            number = self.numbers[memory] = len(self.groups)
            self.groups.append(_Group(owner, start, stop, device, target or "cpu"))
        group = self.groups[number]
        group.start, group.stop = min(group.start, start), max(group.stop, stop)
        group.tensors.append(tensor)
        return number


class Incoming:
    """A message that is read in this thread."""

    __slots__ = ("blocks", "context", "requiring", "rrefs", "source", "starts")

    def __init__(self, source: int, context: Any) -> None:
        self.source, self.context = source, context
        self.blocks: list[Any] = []
        self.starts: list[int] = []
        self.rrefs: list[Any] = []
        """The references that were in it."""
        self.requiring: list[Tensor] = []
        """The tensors in it that require gradients."""


class _Now(threading.local):
    out: Outgoing | None = None
    into: Incoming | None = None


now = _Now()
"""What this thread is making or reading."""
