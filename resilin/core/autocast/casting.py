"""Runs a listed function on arguments cast as its list says. Gradients go back through the casts, in the old dtype.

Inside the function autocast is off for the device type, as in PyTorch: what it calls sees the dtypes that it was given.
Casts of parameters to the lower precision are kept until the outermost region ends: weights are used again and again,
other leaves come and go.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from resilin.core.autocast import lists, results
from resilin.core.autocast.state import Kept, here
from resilin.core.autograd.grad_mode import mode
from resilin.core.ops.shape import astype
from resilin.core.tensor import Parameter, Tensor
from resilin.core.trees import of_kind

_FLOAT32 = np.dtype(np.float32)


def run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function(*args, **kwargs)`, its tensors cast where this thread's autocast and the lists say so."""
    enabled, call = here.enabled, function.__wrapped__
    if not enabled:
        return call(*args, **kwargs)
    kind = next((t._dev.type for t in of_kind(Tensor, (*args, *kwargs.values())) if t._dev.type in enabled), None)
    policy = None if kind is None else lists.policy(kind, function.__name__, args, kwargs)
    if kind is None or policy is None:
        return call(*args, **kwargs)
    here.enabled = enabled - {kind}  # for a moment, so `state.threads` stays
    try:
        cast = _cast_of(kind, _target(kind, policy, (*args, *kwargs.values())))
        made = call(*[mapped(cast, value) for value in args], **{k: mapped(cast, v) for k, v in kwargs.items()})
        after = results.AFTER.get(function.__name__)
        return made if after is None else after(here.dtypes[kind].np, made, *args, **kwargs)
    finally:
        here.enabled = enabled


def mapped(cast: Callable[[Tensor], Tensor], value: Any) -> Any:
    """`value` with its tensor, or all tensors in its lists and tuples, cast; what is neither as it is."""
    if isinstance(value, Tensor):
        return cast(value)
    if isinstance(value, list | tuple):
        parts = [mapped(cast, each) for each in value]
        if any(part is not each for part, each in zip(parts, value, strict=True)):
            return tuple(parts) if isinstance(value, tuple) else parts
    return value


def is_eligible(tensor: Tensor, device_type: str) -> bool:
    """Whether autocast for a device type casts the tensor at all: float64, integers and complex numbers stay."""
    dtype = tensor._array.dtype
    return tensor._dev.type == device_type and dtype.kind in "fV" and dtype.itemsize < 8


def cast_all(value: Any, device_type: str, dtype: Any) -> Any:
    """`value` with its tensors, or those in its mappings and iterables, as `dtype` where autocast casts them."""
    if isinstance(value, Tensor):
        return value.to(dtype) if is_eligible(value, device_type) else value
    if isinstance(value, str | bytes | np.ndarray):
        return value
    if isinstance(value, Mapping):
        return {cast_all(k, device_type, dtype): cast_all(v, device_type, dtype) for k, v in value.items()}
    if isinstance(value, Iterable):
        cast = (cast_all(each, device_type, dtype) for each in value)
        return type(value)(cast) if isinstance(value, list | tuple) else cast
    return value


@contextmanager
def without(device_type: str) -> Iterator[None]:
    """Inside, autocast is off in this thread for a device type."""
    enabled = here.enabled
    here.enabled = enabled - {device_type}  # for a moment, so `state.threads` stays
    try:
        yield
    finally:
        here.enabled = enabled


def _target(kind: str, policy: str, values: tuple[Any, ...]) -> np.dtype[Any]:
    if policy is lists.FLOAT32:
        return _FLOAT32
    lower: np.dtype[Any] = here.dtypes[kind].np
    if policy is lists.LOWER:
        return lower
    found = {tensor._array.dtype for tensor in of_kind(Tensor, values) if is_eligible(tensor, kind)}
    if _FLOAT32 in found:
        return _FLOAT32
    if found - {lower}:
        raise RuntimeError(
            f"Unexpected floating ScalarType in at::autocast::prioritize: autocast to {here.dtypes[kind]} met tensors "
            f"of {', '.join(sorted(map(str, found - {lower})))}; convert them first"
        )
    return lower


def _cast_of(kind: str, target: np.dtype[Any]) -> Callable[[Tensor], Tensor]:
    keeps = here.cache_enabled and here.nesting > 0 and target == here.dtypes[kind].np

    def cast(tensor: Tensor) -> Tensor:
        if tensor._array.dtype == target or not is_eligible(tensor, kind):
            return tensor
        weight = keeps and isinstance(tensor, Parameter) and tensor._rg and tensor._node is None
        made: Tensor = _kept(tensor, target) if weight else astype.call(tensor, target)
        return made

    return cast


def _kept(weight: Tensor, target: np.dtype[Any]) -> Tensor:
    """The cast of a weight, made once in the outermost region (in each checkpoint once more: it runs again alone)."""
    frame, key = mode.frame, (id(weight), id(mode.frame))
    found = here.cache.get(key)
    if found is not None and _is_current(found, weight, frame, target):
        return found.cast  # type: ignore[no-any-return]
    made: Tensor = astype.call(weight, target)
    of_frame = None if frame is None else weakref.ref(frame)
    here.cache[key] = Kept(weakref.ref(weight), weakref.ref(weight._array), of_frame, weight._writes, made)
    return made


def _is_current(found: Kept, weight: Tensor, frame: Any, target: np.dtype[Any]) -> bool:
    """Whether a cast is of this weight as it is now, and recorded if that is asked for."""
    same = found.weight() is weight and found.array() is weight._array and found.writes == weight._writes
    inside = frame is None if found.frame is None else found.frame() is frame
    return same and inside and found.cast._array.dtype == target and (found.cast._node is not None or not mode.grad)
