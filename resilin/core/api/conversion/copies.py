"""The `*_copy` functions: what a view function of the same name shows, copied.

`__all__` are the functions of `resilin`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from resilin.core.api.manipulation import indexing, joining, rearranging, shaping
from resilin.core.api.mathematics import complexes
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor


def _slice(input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    if step < 1:
        raise RuntimeError(f"slice_copy: step must be positive, got {step}")
    return indexing.getitem(input, (slice(None),) * check_dim(dim, input._array.ndim) + (slice(start, end, step),))


def _alias(input: Tensor) -> Tensor:
    return input


def _copying(name: str, view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def copied(*args: Any, **kwargs: Any) -> Any:
        shown = view(*args, **kwargs)
        return tuple(part.clone() for part in shown) if isinstance(shown, tuple) else shown.clone()

    copied.__name__ = copied.__qualname__ = name
    copied.__module__ = __name__
    copied.__doc__ = f"What `{name.removesuffix('_copy')}` shows, copied."
    return copied


_VIEWS: dict[str, Callable[..., Any]] = {
    "alias": _alias,
    "as_strided": rearranging.as_strided,
    "detach": Tensor.detach,
    "diagonal": shaping.diagonal,
    "expand": shaping.expand,
    "permute": shaping.permute,
    "select": joining.select,
    "slice": _slice,
    "split": joining.split,
    "split_with_sizes": rearranging.split_with_sizes,
    "squeeze": shaping.squeeze,
    "t": shaping.t,
    "transpose": shaping.transpose,
    "unbind": joining.unbind,
    "unfold": indexing.unfold,
    "unsqueeze": shaping.unsqueeze,
    "view": shaping.view,
    "view_as_complex": complexes.view_as_complex,
    "view_as_real": complexes.view_as_real,
}
for _name, _view in _VIEWS.items():
    globals()[f"{_name}_copy"] = _copying(f"{_name}_copy", _view)

__all__ = [f"{name}_copy" for name in _VIEWS]
