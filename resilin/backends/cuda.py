"""The switches of torch.backends.cuda. Checked and kept; `matmul` says what products may round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from resilin.core import device as devices
from resilin.core import float32_matmul
from resilin.core.argument_checks import flag

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
    """What products of matrices may round on CUDA devices. UsageTypeError for what is no flag."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = {
            "allow_fp16_reduced_precision_reduction": True,
            "allow_bf16_reduced_precision_reduction": True,
            "allow_fp16_accumulation": False,
        }

    @property
    def allow_tf32(self) -> bool:
        """Whether `set_float32_matmul_precision` allows less than "highest"."""
        return float32_matmul.allows_tf32()

    def __getattr__(self, name: str) -> bool:
        try:
            return self._kept[name]
        except KeyError:
            raise AttributeError(f"backends.cuda.matmul has no switch {name!r}", name=name, obj=self) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_kept":
            object.__setattr__(self, name, value)
        elif name == "allow_tf32":
            float32_matmul.allow_tf32(flag("backends.cuda.matmul.allow_tf32", value))
        elif name in self._kept:
            self._kept[name] = flag(f"backends.cuda.matmul.{name}", value)
        else:
            raise AttributeError(f"backends.cuda.matmul has no switch {name!r}", name=name, obj=self)


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
