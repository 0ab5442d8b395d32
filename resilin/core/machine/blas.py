"""The OpenBLAS that numpy brings along."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from resilin._base import env

_PREFIXES = ("scipy_", "")  # numpy's wheels rename its functions
_SUFFIXES = ("64_", "_64", "")  # where its integers have 64 bits


@cache
def _libraries() -> list[ctypes.CDLL]:
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return [ctypes.CDLL(path) for path in sorted({line.split(maxsplit=5)[-1] for line in lines if "openblas" in line})]


@cache
def function(name: str) -> Any:
    """OpenBLAS's function `name`, for example "set_num_threads"; None where this process has no OpenBLAS."""
    for library in _libraries():
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                found = getattr(library, f"{prefix}openblas_{name}{suffix}", None)
                if found is not None:
                    return found
    return None


def kernels() -> str:
    """Which matrix kernels run ("OpenBLAS with SkylakeX kernels"); empty where this process has no OpenBLAS."""
    core_name = function("get_corename")
    if core_name is None:
        return ""
    name = ctypes.CFUNCTYPE(ctypes.c_char_p)(ctypes.cast(core_name, ctypes.c_void_p).value or 0)().decode()
    return f"OpenBLAS with {name} kernels"


def describe() -> str:
    """One line for people: which matrix kernels run, and who chose them."""
    running = kernels()
    if not running:
        return "BLAS: not OpenBLAS; its number of threads follows its own settings"
    chosen = env.get("OPENBLAS_CORETYPE")
    reason = f"OPENBLAS_CORETYPE={chosen} is set; unset it to let OpenBLAS choose" if chosen else "its own choice"
    return f"BLAS: {running} ({reason})"
