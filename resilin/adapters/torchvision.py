"""torchvision's functions over operators compiled for PyTorch's C++ say which one was asked for, and what there is."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NoReturn

_OVERLAPS = "torchvision.ops.box_iou, which is made of tensors, gives the overlaps that it goes by"
_WINDOWS = "resilin.nn.functional.grid_sample reads windows at places between pixels, with gradients"
_INSTEAD = {
    "nms": _OVERLAPS,
    "batched_nms": _OVERLAPS,
    "_batched_nms_vanilla": _OVERLAPS,
    "roi_align": _WINDOWS,
    "roi_pool": _WINDOWS,
    "ps_roi_align": _WINDOWS,
    "ps_roi_pool": _WINDOWS,
    "deform_conv2d": _WINDOWS,
}


def adapt(extension: ModuleType) -> None:
    """Replace the check that they begin with, in `torchvision.extension`, where the operators are not there."""
    if not extension._has_ops():
        extension._assert_has_ops = _refuse  # type: ignore[attr-defined]


def _refuse() -> NoReturn:
    """Raise RuntimeError, as torchvision does, for the function that calls this."""
    caller = sys._getframe(1)
    name = caller.f_code.co_name
    instead = _INSTEAD.get(name, "write it of tensors, and enter it by resilin.library.custom_op")
    raise RuntimeError(
        f"{caller.f_globals['__name__']}.{name}: torchvision::{name.lstrip('_')} is an operator in C++, compiled for "
        f"PyTorch, and is not there: {instead}"
    )
