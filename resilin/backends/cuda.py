"""The switches of torch.backends.cuda. They keep what they are given; `matmul.allow_tf32` changes results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from resilin.core import device as devices
from resilin.core.matmul_precision import matmul_precision

__all__ = [
    "cudnn_sdp_enabled",
    "enable_cudnn_sdp",
    "enable_flash_sdp",
    "enable_math_sdp",
    "enable_mem_efficient_sdp",
    "flash_sdp_enabled",
    "is_built",
    "math_sdp_enabled",
    "matmul",
    "mem_efficient_sdp_enabled",
    "preferred_linalg_library",
    "sdp_kernel",
]


class _Matmul:
    """How CUDA multiplies matrices. Of 16-bit floats it sums in float32, whatever is allowed."""

    def __init__(self) -> None:
        self.allow_fp16_reduced_precision_reduction = True
        self.allow_bf16_reduced_precision_reduction = True
        self.allow_fp16_accumulation = False

    @property
    def allow_tf32(self) -> bool:
        """Whether factors of float32 may be rounded to TF32: the same as `set_float32_matmul_precision("high")`."""
        return matmul_precision.tf32

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        matmul_precision.chosen = "high" if allow else "highest"


matmul = _Matmul()


def is_built() -> bool:
    """Whether CuPy, through which CUDA devices are used, can be loaded; `cuda.is_available` asks for a device, too."""
    try:
        devices.backend_of("cuda")
    except RuntimeError:
        return False
    return True


# Implementations of attention that may be used: there is one here, whatever is switched on
_attention = {"flash": True, "math": True, "mem_efficient": True, "cudnn": True}
_linalg = ["default"]


def flash_sdp_enabled() -> bool:
    """Return what `enable_flash_sdp` was given last."""
    return _attention["flash"]


def enable_flash_sdp(enabled: bool) -> None:
    """Keep whether PyTorch's flash attention may be used, which changes nothing."""
    _attention["flash"] = bool(enabled)


def mem_efficient_sdp_enabled() -> bool:
    """Return what `enable_mem_efficient_sdp` was given last."""
    return _attention["mem_efficient"]


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Keep whether PyTorch's memory-efficient attention may be used, which changes nothing."""
    _attention["mem_efficient"] = bool(enabled)


def math_sdp_enabled() -> bool:
    """Return what `enable_math_sdp` was given last."""
    return _attention["math"]


def enable_math_sdp(enabled: bool) -> None:
    """Keep whether PyTorch's plain attention may be used, which changes nothing."""
    _attention["math"] = bool(enabled)


def cudnn_sdp_enabled() -> bool:
    """Return what `enable_cudnn_sdp` was given last."""
    return _attention["cudnn"]


def enable_cudnn_sdp(enabled: bool) -> None:
    """Keep whether cuDNN's attention may be used, which changes nothing."""
    _attention["cudnn"] = bool(enabled)


@contextlib.contextmanager
def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True, enable_cudnn: bool = True
) -> Iterator[Any]:
    """Keep these switches for a block. Neither it nor its successor `nn.attention.sdpa_kernel` changes results."""
    before = dict(_attention)
    _attention.update(flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient, cudnn=enable_cudnn)
    try:
        yield {}
    finally:
        _attention.update(before)


def preferred_linalg_library(backend: str | None = None) -> str:
    """Keep which library should compute linear algebra, which changes nothing; return what was kept."""
    if backend is not None:
        _linalg[0] = backend
    return _linalg[0]
