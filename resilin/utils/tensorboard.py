"""torch.utils.tensorboard: `SummaryWriter`, which is tensorboardX's. It takes tensors as they are."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = ("FileWriter", "RecordWriter", "SummaryWriter")
__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    """Return tensorboardX's class of that name. ImportError says what to install."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    try:
        tensorboardx = importlib.import_module("tensorboardX")
    except ImportError as error:
        raise ImportError(
            f"{__name__}.{name} is that of the package tensorboardX, which cannot be imported ({error}): "
            "pip install 'resilin[tensorboard]'"
        ) from None
    value = globals()[name] = getattr(tensorboardx, name)
    return value
