"""The place of sparse tensors for benchmarks, which resilin has none of."""

from __future__ import annotations

from typing import Any

from resilin.utils.benchmark.utils.fuzzer import FuzzedTensor

__all__ = ["FuzzedSparseTensor"]


class FuzzedSparseTensor(FuzzedTensor):
    """Refuse to be made: NotImplementedError."""

    def __init__(self, name: str, size: tuple[str | int, ...], *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"FuzzedSparseTensor {name!r}: resilin has dense tensors; expected a FuzzedTensor instead"
        )
