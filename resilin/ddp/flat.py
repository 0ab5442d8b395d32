"""Flat gradient arrays and their views, and the hooks that say when a gradient is ready."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from resilin.core.state.hooks import RemovableHandle
from resilin.core.tensor import Tensor
from resilin.ddp.buckets import BucketSpec, ParameterSpec

Array = NDArray[Any]


class Layout:
    """The buckets of one wrapper: their memory, and in which one and where each parameter's gradient lies."""

    def __init__(self, plan: Sequence[BucketSpec], params: Sequence[Tensor]) -> None:
        self.flats = [Flat(spec, params) for spec in plan]
        self.where = {
            slot.param: (flat.spec.index, flat.views[place])
            for flat in self.flats
            for place, slot in enumerate(flat.spec.slots)
        }


class Flat:
    """The memory of one bucket: a flat array (shareable with peers on the host) and one view per gradient."""

    __slots__ = ("array", "spec", "tensor", "views")

    def __init__(self, spec: BucketSpec, params: Sequence[Tensor]) -> None:
        self.spec = spec
        self.array: Array = np.zeros(spec.numel, params[spec.slots[0].param]._array.dtype)
        self.tensor = Tensor._wrap(self.array)
        self.views: list[Array] = [
            self.array[slot.start : slot.stop].reshape(params[slot.param]._array.shape) for slot in spec.slots
        ]


def specs_of(named: Sequence[tuple[str, Tensor]]) -> list[ParameterSpec]:
    """What `buckets.assign` needs to know of each parameter."""
    return [
        ParameterSpec(name, tensor.numel(), tensor.element_size(), f"{tensor._array.dtype.name} {tensor.device}")
        for name, tensor in named
    ]


def place_gradient(param: Tensor, view: Array) -> None:
    """Make `param.grad` a tensor over `view` with its present value; nothing is copied when it lies there already."""
    grad = param._grad
    assert grad is not None, "a post-accumulate hook runs after the gradient was accumulated"
    if grad._array is view:
        return
    here = grad._array.__array_interface__["data"][0] == view.__array_interface__["data"][0]
    if not (here and grad._array.strides == view.strides and grad._array.dtype == view.dtype):
        np.copyto(view, grad._array)
    param._grad = Tensor._wrap(view)


class Listener(Protocol):
    """What is told of ready gradients."""

    def on_ready(self, number: int) -> None:
        """The gradient of parameter `number` is final for this backward."""


class _Ready:
    """The hook of one parameter. It holds the listener weakly: a wrapper that is dropped is not kept alive by it."""

    __slots__ = ("listener", "number")

    def __init__(self, listener: weakref.ref[Listener], number: int) -> None:
        self.listener, self.number = listener, number

    def __call__(self, _: Tensor) -> None:
        alive = self.listener()
        if alive is not None:
            alive.on_ready(self.number)


def listen(params: Sequence[Tensor], listener: Listener) -> Callable[[], None]:
    """Call `listener.on_ready(number)` whenever a gradient is final. Returns the function that takes the hooks away."""
    weak = weakref.ref(listener)
    handles: list[RemovableHandle] = [
        param.register_post_accumulate_grad_hook(_Ready(weak, number)) for number, param in enumerate(params)
    ]

    def stop() -> None:
        for handle in handles:
            handle.remove()
        for param in params:
            param._grad_slot = None

    return stop


def listeners(param: Tensor) -> list[Listener]:
    """Who is told when the gradient of `param` is ready."""
    posted = [] if param._hooks is None or not param._hooks.post else list(param._hooks.post.values())
    found = [hook.listener() for hook in posted if isinstance(hook, _Ready)]
    return [listener for listener in found if listener is not None]
