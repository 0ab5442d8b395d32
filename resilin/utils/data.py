"""The names of torch.utils.data where PyTorch has them. They are `resilin.data`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import resilin.data as _data

if TYPE_CHECKING:
    from resilin.data import *  # noqa: F403

__all__ = list(_data.__all__)


def __getattr__(name: str) -> Any:
    try:
        return getattr(_data, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return dir(_data)
