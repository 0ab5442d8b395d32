"""Flat gradient arrays and their views, and the hooks that say when a gradient is ready."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from resilin.core.kernels.common import address_of
from resilin.core.ops.lazy_gradients import Product
from resilin.core.state.hooks import RemovableHandle
from resilin.core.tensor import Tensor, wrap
from resilin.ddp.buckets import BucketSpec, ParameterSpec
from resilin.shards.tree_sum import scaled

Array = NDArray[Any]


class Flat:
    """The memory of one bucket on its parameters' device: a flat array (on the host shareable with peers) and one view
    per gradient."""

    __slots__ = ("array", "device", "spec", "tensor", "views")

    def __init__(self, spec: BucketSpec, params: Sequence[Tensor]) -> None:
        self.spec = spec
        first = params[spec.slots[0].param]
        self.device = first._dev
        self.array: Array = self.device.xp.zeros(spec.numel, first._array.dtype)
        self.tensor = wrap(self.array, self.device)
        self.views: list[Array] = [
            self.array[slot.start : slot.stop].reshape(params[slot.param]._array.shape) for slot in spec.slots
        ]

    def bring(self, place: int, param: Tensor, as_view: bool) -> None:
        """Put the gradient of `param` into its place, zero when there is none. With `as_view` it lies there from then
        on; nothing is copied when it does already."""
        view, grad = self.views[place], param._grad
        if grad is None:
            view[...] = 0
        elif grad._array is not view:
            here = address_of(grad._array) == address_of(view)
            if not (here and grad._array.strides == view.strides):
                view[...] = grad._array
            if as_view:
                param._grad = wrap(view, self.device)

    def give(self, place: int, param: Tensor, as_view: bool) -> None:
        """Make what lies in a place the gradient of `param`."""
        view, grad = self.views[place], param._grad
        if grad is None:
            param._grad = wrap(view if as_view else view.copy(), self.device)
        elif grad._array is not view:
            grad._array[...] = view

    def scale(self, factor: float) -> None:
        """Multiply all gradients by `factor`."""
        self.array[...] = scaled(self.array, factor)

    def settle(self) -> None:
        """The step is over: what is there stays."""


class Lone(Flat):
    """The bucket of one large gradient, which is reduced where backward put it: it is never copied."""

    __slots__ = ("_nothing",)

    def __init__(self, spec: BucketSpec, params: Sequence[Tensor]) -> None:
        self.spec = spec
        param = params[spec.slots[0].param]
        self.device = param._dev
        self._nothing: Array = self.device.xp.empty((0,) * max(1, param.dim()), param._array.dtype)
        self.settle()

    def _hold(self, array: Array) -> None:
        self.array = array.reshape(-1)
        self.tensor = wrap(self.array, self.device)
        self.views = [array]

    def bring(self, place: int, param: Tensor, as_view: bool) -> None:
        """See Flat."""
        grad = param._grad
        if grad is None:
            self._hold(self.device.xp.zeros(param._array.shape, param._array.dtype))
            return
        flags = grad._array.flags
        if not (flags.c_contiguous and getattr(flags, "writeable", True)):  # arrays of devices are never read-only
            param._grad = grad = wrap(self.device.xp.array(grad._array, copy=True, order="C"), self.device)
        self._hold(grad._array)

    def settle(self) -> None:
        """Let go of the gradient, so that its memory is free as soon as the parameter drops it: the next backward puts
        its gradient there, where it is in the caches. (An empty slice would hold all of it.)"""
        self._hold(self._nothing)


class Layout:
    """The buckets of one wrapper, and in which one and at which place each parameter's gradient lies."""

    def __init__(self, plan: Sequence[BucketSpec], params: Sequence[Tensor]) -> None:
        self.flats = [(Lone if spec.lone else Flat)(spec, params) for spec in plan]
        self.where = {slot.param: (flat, place) for flat in self.flats for place, slot in enumerate(flat.spec.slots)}

    def make_slots(self, params: Sequence[Tensor]) -> None:
        """Have backward write gradients into their places."""
        for number, (flat, place) in self.where.items():
            params[number]._grad_slot = None if flat.spec.lone else flat.views[place]


def specs_of(named: Sequence[tuple[str, Tensor]]) -> list[ParameterSpec]:
    """What `buckets.assign` needs to know of each parameter."""
    return [
        ParameterSpec(name, tensor.numel(), tensor.element_size(), f"{tensor._array.dtype.name} {tensor.device}")
        for name, tensor in named
    ]


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


class ProductListener(Protocol):
    """What is offered products of gradients before they are multiplied."""

    def on_product(self, number: int, product: Product) -> bool:
        """Whether the gradient of parameter `number` went to where it belongs; `on_ready` is called all the same."""


class _Offer:
    """Where one parameter's gradient goes (`Tensor._grad_slot`): to the listener, which it holds weakly."""

    __slots__ = ("listener", "number")

    def __init__(self, listener: weakref.ref[ProductListener], number: int) -> None:
        self.listener, self.number = listener, number

    def take(self, leaf: Tensor, product: Product) -> bool:
        alone = leaf._hooks is not None and len(leaf._hooks.post) == 1  # others want to see `grad`
        alive = self.listener() if alone else None
        return alive is not None and alive.on_product(self.number, product)


def offer_products(params: Sequence[Tensor], listener: ProductListener) -> None:
    """Call `listener.on_product` for gradients that are products. What `listen` returned ends it, too."""
    weak = weakref.ref(listener)
    for number, param in enumerate(params):
        param._grad_slot = _Offer(weak, number)


def listeners(param: Tensor) -> list[Listener]:
    """Who is told when the gradient of `param` is ready."""
    posted = [] if param._hooks is None or not param._hooks.post else list(param._hooks.post.values())
    found = [hook.listener() for hook in posted if isinstance(hook, _Ready)]
    return [listener for listener in found if listener is not None]
