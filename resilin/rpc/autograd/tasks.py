"""One worker's part of a distributed backward, and what is remembered of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from resilin.core.tensor import Tensor
from resilin.errors import RpcError
from resilin.rpc.autograd.contexts import DistAutogradContext
from resilin.rpc.autograd.local_backward import LocalBackward

_MOST_OVER = 64  # backwards of one context that are remembered: later messages of one of them are dropped


class Over:
    """What is remembered of a backward that has ended here."""

    __slots__ = ("failed", "peers", "places")

    def __init__(self, failed: bool, peers: Sequence[int] = (), places: frozenset[bytes] = frozenset()) -> None:
        self.failed, self.peers, self.places = failed, peers, places


class Task:
    """One worker's part of a backward that is under way."""

    def __init__(self, context: DistAutogradContext, id: tuple[int, int], keep: bool) -> None:
        self.context, self.id, self.keep = context, id, keep
        with context.lock:
            self.sends, self.receives = dict(context.sends), dict(context.receives)
        self.waiting = dict(self.sends)
        """Sent messages whose gradients have not come."""
        self.peers = {node.to for node in self.sends.values()} | {node.source for node in self.receives.values()}
        self.run: LocalBackward | None = None
        self.jobs: deque[Callable[[], None]] = deque()
        self.turn = threading.Lock()
        self.error: BaseException | None = None
        self.told = False  # its DONE has gone with a gradient
        # of the root's:
        self.parties: dict[int, bool] = {}
        """Workers that take part: whether they are done."""
        self.heard: dict[int, float] = {}
        self.over = threading.Lock()
        self.over.acquire()

    def release(self) -> None:
        """Let the root go on."""
        if self.over.locked():
            self.over.release()


def remember(context: DistAutogradContext, id: tuple[int, int], over: Over) -> None:
    context.over[id] = over
    while len(context.over) > _MOST_OVER:
        del context.over[next(iter(context.over))]


def check_roots(roots: Sequence[Tensor]) -> None:
    """RuntimeError unless a backward can begin with `roots`, with PyTorch's texts."""
    if not roots:
        raise RpcError("No tensors provided for gradient computation.")
    for root in roots:
        if not root.requires_grad:
            raise RpcError("requires_grad not set on root: it depends on no tensor that requires gradients")
        if root._array.size != 1:
            raise RpcError(f"a root of shape {tuple(root.shape)} is not a scalar, all roots need to be scalar")
        if root.grad_fn is None:
            raise RpcError("a root, which is a leaf, does not have a valid gradient function.")
