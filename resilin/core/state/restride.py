"""In-place changes of what a tensor shows of its memory: shape, strides, or another memory. No element is written.

`t_` and its like move the tensor to the view op's place in the graph. A view made before keeps showing the old layout;
where backward would have to follow a later write through it, `refresh` and `inplace` say that they cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilin.core.api.manipulation import rearranging, shaping
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.tape import edge_of
from resilin.core.determinism import uninitialized
from resilin.core.state.inplace import check_writable
from resilin.core.state.memory_format import orders
from resilin.core.state.size import contiguous_strides, lengths_of
from resilin.core.state.versions import share_version
from resilin.core.state.write_log import before_move
from resilin.core.tensor import Tensor, wrap


def _in_place(name: str, view: Callable[..., Any]) -> Callable[..., Tensor]:
    """The method `name`: the tensor becomes what `view` shows of it."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if mode.grad and self.requires_grad:
            check_writable(self)
        before_move(self)
        shown = view(_as_it_was(self), *args, **kwargs)
        self._array = shown._array
        if self._view is not None:
            self._view = shown._view
        if mode.grad and self._rg:
            self._move(shown._node)
        self._bump()
        return self

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`{name[:-1]}` in place: this tensor becomes the view."
    return method


def _as_it_was(self: Tensor) -> Tensor:
    """Another tensor at this one's place: in memory, in the graph and among views."""
    before = wrap(self._array, self._dev)
    edge_of(self)  # a stale view is recorded anew
    before._node, before._rg, before._view = self._node, self._rg, self._view
    before._vc = share_version(self)
    return before


_VIEWS: dict[str, Callable[..., Tensor]] = {
    "as_strided": rearranging.as_strided,
    "squeeze": shaping.squeeze,
    "swapaxes": shaping.swapaxes,
    "swapdims": shaping.swapdims,
    "t": shaping.t,
    "transpose": shaping.transpose,
    "unsqueeze": shaping.unsqueeze,
}
METHODS = {f"{name}_": _in_place(f"{name}_", view) for name, view in _VIEWS.items()}


def _may_change(self: Tensor, name: str) -> None:
    if self.requires_grad:
        raise RuntimeError(f"{name}: cannot resize variables that require grad; use detach()")


def resize_(self: Tensor, *sizes: Any, memory_format: Any = None) -> Tensor:
    """Become contiguous and of another shape, keeping the first elements in C order.

    With more elements than there were, the tensor moves to new memory, whose further elements come as they are; other
    tensors over the old memory keep that. RuntimeError when it requires a gradient.
    """
    _may_change(self, "resize_")
    shape = tuple(lengths_of("resize_", sizes))
    if min(shape, default=0) < 0:
        raise RuntimeError(f"resize_: sizes must not be negative, got {list(shape)}")
    if orders("resize_", len(shape), memory_format) is not None:
        raise NotImplementedError("resize_: the elements lie in C order only; use contiguous(memory_format=...) after")
    before_move(self)
    old, count = self._array, 1
    for length in shape:
        count *= length
    if count <= old.size and old.flags.c_contiguous:
        self._array = old.reshape(-1)[:count].reshape(shape)
    else:
        new = uninitialized(count, old.dtype, self._dev.xp)
        kept = old.reshape(-1)[:count]
        new[: kept.size] = kept
        self._array, self._view, self._vc = new.reshape(shape), None, None
    self._bump()
    return self


def resize_as_(self: Tensor, the_template: Tensor, *, memory_format: Any = None) -> Tensor:
    """`resize_` to the shape of another tensor."""
    return resize_(self, *the_template._array.shape, memory_format=memory_format)


def set_(self: Tensor, source: Any = None, storage_offset: int = 0, size: Any = None, stride: Any = None) -> Tensor:
    """Show the memory of `source`, a tensor or a storage; nothing without it.

    With `size`: from element `storage_offset`, in that shape with `stride`.
    """
    if mode.grad:
        _may_change(self, "set_")
    before_move(self)
    if source is None:
        self._array, self._view, self._vc = self._dev.xp.empty(0, self._array.dtype), None, None
        return self
    if hasattr(source, "elements_of"):  # a storage: of a file above this one
        source = source.elements_of(self.dtype)
    if not isinstance(source, Tensor):
        raise TypeError(f"set_(): expected a Tensor or an UntypedStorage, got {type(source).__name__}")
    if source._array.dtype != self._array.dtype or source._dev is not self._dev:
        raise RuntimeError(
            f"set_(): expected a source of {self.dtype} on {self._dev}, got one of {source.dtype} on {source._dev}"
        )
    shown = source.detach()
    if size is not None:
        steps = contiguous_strides(size) if stride is None else stride
        shown = rearranging.as_strided(shown, size, steps, storage_offset)
    self._array, self._view, self._vc = shown._array, None, share_version(source)
    self._bump()
    return self
