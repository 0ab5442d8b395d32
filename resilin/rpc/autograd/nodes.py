"""Begin and end the graph of one worker: `SendRpcBackward` where tensors left it, `RecvRpcBackward` where they came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from resilin.core.autograd.tape import Node, Pick, edge_of
from resilin.core.device import CPU
from resilin.core.tensor import Tensor


class _Op:
    """What a node wants to know of its op."""

    saves_any = False

    def __init__(self, name: str) -> None:
        self.name = name


_SEND, _RECEIVE = _Op("SendRpc"), _Op("RecvRpc")


class SendRpcBackward(Node):
    """Where tensors left: the gradients that come back begin here. `place`: of their message; `to`: who has them."""

    __slots__ = ("place", "to")

    def __init__(self, place: bytes, to: int, tensors: Sequence[Tensor]) -> None:
        edges = tuple(edge_of(tensor) for tensor in tensors)
        metas = tuple((tensor._array.shape, tensor._array.dtype) for tensor in tensors)
        super().__init__(_SEND, None, tensors[0]._dev, edges, metas, (True,) * len(tensors), ())
        self.saved = (None,) * len(tensors)
        self.place, self.to = place, to

    def name(self) -> str:
        """ "SendRpcBackward"."""
        return "SendRpcBackward"

    def run(self, g: Any) -> Any:
        """Return the gradients that came, one for each tensor that was sent."""
        return list(g)


class RecvRpcBackward(Node):
    """Where tensors came in: their gradients go back from here. `place`: of their message; `source`: who sent them."""

    __slots__ = ("context_id", "devices", "place", "sink", "source")

    def __init__(self, context_id: int, place: bytes, source: int, tensors: Sequence[Tensor]) -> None:
        """Make `tensors`, which have just come, its results."""
        super().__init__(_RECEIVE, None, tensors[0]._dev if tensors else CPU, (), (), (), ())
        self.saved = ()
        self.context_id, self.place, self.source = context_id, place, source
        self.devices = [tensor._dev for tensor in tensors]
        self.sink: Callable[[RecvRpcBackward, list[Any]], None] | None = None
        """Takes the gradients, in a backward."""
        self.outputs = len(tensors)
        for index, tensor in enumerate(tensors):
            node: Node = self
            if len(tensors) > 1:
                node = Pick(self, index)
                node.dev = tensor._dev
            tensor._node, tensor._rg = node, True

    def name(self) -> str:
        """ "RecvRpcBackward"."""
        return "RecvRpcBackward"

    def run(self, g: Any) -> Any:
        """Hand the gradients to who sends them back."""
        if self.sink is None:
            raise RuntimeError(
                f"RecvRpcBackward: a backward has come to tensors that worker {self.source} sent in the autograd "
                f"context {self.context_id}, but it is no backward of that context: call "
                "resilin.distributed.autograd.backward with its id, within it"
            )
        self.sink(self, g if isinstance(g, list) else [g])
        return ()
