"""What decides the bits of this process's floating-point results."""

from __future__ import annotations

from resilin.core import blas
from resilin.core.kernels import loader


def describe() -> str:
    """One line: native kernels and their instruction set or numpy's, and OpenBLAS's kernels. Equal text, equal bits."""
    kernels = "numpy's kernels" if loader.native is None else f"native kernels for {loader.native.isa()}"
    return f"{kernels}, {blas.kernels() or 'an unknown BLAS'}"
