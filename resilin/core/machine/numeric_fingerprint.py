"""What decides the bits of this process's floating-point results."""

from __future__ import annotations

from resilin.core.kernels import loader
from resilin.core.machine import blas, threads


def describe() -> str:
    """One line: native kernels and their instruction set or numpy's, and OpenBLAS's kernels. Equal text, equal bits."""
    kernels = "numpy's kernels" if loader.native is None else f"native kernels for {loader.native.isa()}"
    own_threads = "" if loader.native is not None else f" on {threads.get_num_threads()} threads"
    return f"{kernels}, {blas.kernels() or 'an unknown BLAS'}{own_threads}"
