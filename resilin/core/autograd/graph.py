"""What surrounds the graph: hooks on what nodes save and on the gradients of several tensors at once.

`saved_tensors_hooks` are a frame (`grad_mode.mode.frame`), as a checkpoint is: told of each node that is made, it takes
what the node saved, and brings it back when backward asks for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from resilin.core.autograd import engine
from resilin.core.autograd.function import FunctionNode
from resilin.core.autograd.grad_mode import mode as grad_mode
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.autograd.tape import Node
from resilin.core.ops.shape import copy
from resilin.core.state.hooks import RemovableHandle
from resilin.core.state.versions import count_of
from resilin.core.tensor import Tensor, wrap


class _Refusal(threading.local):
    message: str | None = None  # why hooks on saved tensors are not allowed just now


_refusal = _Refusal()


class saved_tensors_hooks:
    """Inside, each tensor that a node saves for backward goes through `pack_hook(tensor)`; `unpack_hook` of what that
    gave is what backward gets, once per backward through the node. The innermost pair counts.

    Kernels' own residuals and the arguments of checkpoints are kept as they are. Inside a checkpointed function they
    count for what is saved under them; the checkpoint brings back the rest. RuntimeError inside
    `disable_saved_tensors_hooks`.
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook
        self._before: list[Any] = []

    def __enter__(self) -> None:
        if _refusal.message is not None:
            raise RuntimeError(_refusal.message)
        self._before.append(grad_mode.frame)
        grad_mode.frame = self

    def __exit__(self, *exc: object) -> None:
        grad_mode.frame = self._before.pop()

    def recorded(self, node: Any) -> None:
        """A node (or a checkpoint) was made: pack what it saved."""
        before, grad_mode.frame = grad_mode.frame, None
        try:
            with no_grad():
                if isinstance(node, FunctionNode):
                    _PackedContext(self, node)
                elif isinstance(node, Node) and node.saved is not None:
                    _PackedNode(self, node)
        finally:
            grad_mode.frame = before

    def pack(self, value: Any) -> Any:
        """What stands for `value`; anything but a tensor (a number, None) stands for itself."""
        if not isinstance(value, Tensor):
            return value
        given, before = value.detach(), count_of(value)
        packed = self.pack_hook(given)
        if count_of(given) != before:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook "
                "cannot be modified by in-place operations: use the out-of-place operation"
            )
        return _Handle(packed)

    def unpack(self, kept: Any) -> Any:
        """The value again. TypeError when the user's hook gives no tensor."""
        if not isinstance(kept, _Handle):
            return kept
        value = self.unpack_hook(kept.packed)
        if not isinstance(value, Tensor):
            raise TypeError(f"saved_tensors_hooks: unpack_hook must return a Tensor, got {type(value).__name__}")
        return value


class _Handle:
    __slots__ = ("packed",)

    def __init__(self, packed: Any) -> None:
        self.packed = packed


class _PackedNode:
    """What one node saved. The node holds it, so it refers to the node weakly."""

    __slots__ = ("_hooks", "_node", "_output", "_saved")

    def __init__(self, hooks: saved_tensors_hooks, node: Node) -> None:
        self._hooks, self._node = hooks, weakref.ref(node)
        self._saved = [hooks.pack(value) for value in node.saved]
        self._output = None if node.y is None else hooks.pack(wrap(node.y[0], node.dev))
        residual = node.residual
        if any(isinstance(kept, _Handle) for kept in (*self._saved, self._output)):
            node.strip(self)
            node.residual = residual

    def recompute(self) -> None:
        """Unpack, for the backward that asks."""
        node = self._node()
        if node is None:
            return
        with no_grad():
            values = [self._hooks.unpack(kept) for kept in self._saved]
            output = self._hooks.unpack(self._output)
        node.saved = [_led_to(value, edge) for value, edge in zip(values, node.edges, strict=True)]
        node.versions = [count_of(value) if isinstance(value, Tensor) else 0 for value in node.saved]
        node.y = None if output is None else (output._array, [0], 0)


class _PackedContext:
    """What the context of one `Function` saved."""

    __slots__ = ("_edges", "_hooks", "_node", "_saved")

    def __init__(self, hooks: saved_tensors_hooks, node: FunctionNode) -> None:
        self._hooks, self._node = hooks, weakref.ref(node)
        saved = node.ctx._saved
        self._edges = [None if value is None or not value._rg else value._node or value for value in saved]
        self._saved = [hooks.pack(value) for value in saved]
        if saved:
            node.strip(self)

    def recompute(self) -> None:
        """Unpack, for the backward that asks."""
        node = self._node()
        if node is None:
            return
        with no_grad():
            values = [self._hooks.unpack(kept) for kept in self._saved]
        context = node.ctx
        context._saved = tuple(_led_to(value, edge) for value, edge in zip(values, self._edges, strict=True))
        context._versions = tuple(0 if value is None else count_of(value) for value in context._saved)


def _led_to(value: Any, edge: Any) -> Any:
    """An unpacked tensor at the place in the graph of the one that was packed."""
    if not isinstance(value, Tensor) or edge is None:
        return value
    made = wrap(value._array, value._dev)
    made._node, made._rg = (_to_leaf(edge, made) if isinstance(edge, Tensor) else edge), True
    return made


def _to_leaf(leaf: Tensor, shown: Tensor) -> Node:
    """A node by which the gradient of `shown`, which is not the leaf itself, is the leaf's."""
    meta = (shown._array.shape, shown._array.dtype)
    node = Node(copy, copy.generic, shown._dev, (leaf,), (meta,), (True,), ())
    node.saved, node.versions = (None,), (0,)
    return node


def stand_in(leaf: Tensor) -> Tensor:
    """Give a tensor of a leaf's memory and gradient that is no leaf: it may be written in place."""
    made = leaf.detach()
    made._node, made._rg = _to_leaf(leaf, made), True
    return made


class save_on_cpu(saved_tensors_hooks):
    """Inside, tensors saved for backward wait in the host's memory and return to their device when needed.

    `pin_memory` is accepted as in PyTorch; transfers of this backend do not depend on it.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(lambda tensor: (tensor.device, tensor.cpu()), lambda packed: packed[1].to(packed[0]))


class allow_mutation_on_saved_tensors(saved_tensors_hooks):
    """Inside, tensors that are saved for backward may be written in place before it: their values are copied when they
    are saved (PyTorch copies them when they are written)."""

    def __init__(self) -> None:
        super().__init__(lambda tensor: tensor.clone(), lambda packed: packed)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Inside, entering `saved_tensors_hooks` is a RuntimeError that says `error_message`."""
    before, _refusal.message = _refusal.message, error_message
    try:
        yield
    finally:
        _refusal.message = before


def increment_version(tensor: Tensor | Sequence[Tensor]) -> None:
    """Say that the memory of `tensor` (or of each of several) was written to by something autograd does not see."""
    for one in [tensor] if isinstance(tensor, Tensor) else tensor:
        one._bump()


class _Handles(RemovableHandle):
    """Takes away the hooks of several tensors."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        super().__init__({})
        self._all = handles

    def remove(self) -> None:
        """Remove them; twice is harmless."""
        for handle in self._all:
            handle.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[[Any], None], *, mode: str = "all"
) -> RemovableHandle:
    """Call `fn` once per backward: with the list of all gradients of `tensors`, or with the first to be there ("any").

    With "all", that is when the last one has come; where some get none in this backward (None in the list), at its end.
    Raises: ValueError for another mode; RuntimeError for a tensor that requires no gradient.
    """
    if mode not in ("all", "any"):
        raise ValueError(f'register_multi_grad_hook: mode must be "all" or "any", got {mode!r}')
    together: Any = _All(len(tensors), fn) if mode == "all" else _Any(fn)
    return _Handles([t.register_hook(together.hook(i)) for i, t in enumerate(tensors)])


class _All:
    def __init__(self, count: int, fn: Callable[[Any], None]) -> None:
        self._count, self._fn = count, fn
        self._runs = threading.local()  # gradients by the backward they came in: one may run inside another

    def hook(self, place: int) -> Callable[[Tensor], None]:
        """The hook of the tensor at `place`."""

        def arrived(gradient: Tensor) -> None:
            waiting = self._runs.__dict__
            key = str(id(engine.running.runs[-1]))
            if key not in waiting:
                waiting[key] = [None] * self._count
                engine.queue_callback(lambda: self._end(waiting.pop(key)))
            found = waiting[key]
            found[place] = gradient
            if all(part is not None for part in found):
                self._fn(list(found))

        return arrived

    def _end(self, found: list[Any]) -> None:
        if any(part is None for part in found):
            self._fn(found)


class _Any:
    def __init__(self, fn: Callable[[Any], None]) -> None:
        self._fn = fn
        self._runs = threading.local()  # the backwards in which it was called

    def hook(self, place: int) -> Callable[[Tensor], None]:
        """The hook of any tensor."""

        def arrived(gradient: Tensor) -> None:
            seen = self._runs.__dict__
            key = str(id(engine.running.runs[-1]))
            if key not in seen:
                seen[key] = True
                engine.queue_callback(lambda: seen.pop(key))
                self._fn(gradient)

        return arrived
