"""Choice among implementations of `scaled_dot_product_attention`: torch.nn.attention's names. There is one here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from resilin.errors import UsageError

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(IntEnum):
    """PyTorch's implementations of attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends: list[SDPBackend] | SDPBackend, set_priority: bool = False) -> Iterator[None]:
    """Let attention use `backends` only. Changes nothing: the fused kernel computes what each of them computes.

    Raises: UsageError for anything but an SDPBackend or a list of them.
    """
    every = [backends] if isinstance(backends, SDPBackend) else backends
    if not isinstance(every, list | tuple) or not all(isinstance(each, SDPBackend) for each in every):
        raise UsageError(f"sdpa_kernel: expected an SDPBackend or a list of them, got {backends!r}")
    yield
