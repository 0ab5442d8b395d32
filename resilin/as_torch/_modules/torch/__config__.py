"""What programs print of how PyTorch was built: here, which resilin answers for it."""

from __future__ import annotations

import resilin
from resilin.as_torch import VERSION


def show() -> str:
    """Return a line about the library."""
    return f"PyTorch {VERSION}: resilin {resilin.__version__}, without PyTorch's compiled code\n"


def parallel_info() -> str:
    """Return how many threads compute."""
    return f"at::get_num_threads() : {resilin.get_num_threads()}\n"
