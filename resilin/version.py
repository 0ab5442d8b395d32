"""What this installation is made of, under the names of torch.version."""

from __future__ import annotations

from typing import Any

import resilin
from resilin.core import device as devices

__all__ = ["cuda", "debug", "git_version", "hip", "rocm", "xpu"]

__version__: str = resilin.__version__
debug = False
git_version = "Unknown"
hip: str | None = None
rocm: str | None = None
xpu: str | None = None
cuda: str | None  # the version of CUDA that CuPy computes with; None where no CUDA device can be used


def __getattr__(name: str) -> str | None:
    if name != "cuda":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        backend: Any = devices.backend_of("cuda")
    except RuntimeError:
        return None
    return str(backend.cuda_version())
