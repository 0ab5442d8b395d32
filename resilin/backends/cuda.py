"""The switches of torch.backends.cuda. They keep what they are given; products of matrices are not computed in TF32."""

from __future__ import annotations

from types import SimpleNamespace

from resilin.core import device as devices

__all__ = ["is_built", "matmul"]

matmul = SimpleNamespace(
    allow_tf32=False,
    allow_fp16_reduced_precision_reduction=True,
    allow_bf16_reduced_precision_reduction=True,
    allow_fp16_accumulation=False,
)


def is_built() -> bool:
    """Whether CuPy, through which CUDA devices are used, can be loaded; `cuda.is_available` asks for a device, too."""
    try:
        devices.backend_of("cuda")
    except RuntimeError:
        return False
    return True
