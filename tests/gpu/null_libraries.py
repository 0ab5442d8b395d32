"""Compiles the null driver and its cuBLASLt (`null_driver/`), and steers them.

They stand in for the libraries that native code opens, as the stand-in for CuPy does for the arrays: launches of
emulated kernels, and products, run on the host's memory when they are asked for.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).with_name("null_driver")


class Launch(ctypes.Structure):
    """A launch as the null driver kept it."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("stream", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("bytes", ctypes.c_int),
        ("arguments", ctypes.c_ubyte * 4096),
    ]


class Multiplied(ctypes.Structure):
    """A product as the null cuBLASLt kept it; m, n and k are of matrices by columns."""

    _fields_ = [
        *[(name, ctypes.c_int) for name in ("type", "compute", "epilogue", "batches", "adds")],
        *[(name, ctypes.c_uint64) for name in ("m", "n", "k")],
        *[(name, ctypes.c_void_p) for name in ("a", "b", "out", "vector", "workspace", "stream")],
        ("workspace_bytes", ctypes.c_size_t),
    ]


class Function(ctypes.Structure):
    """A kernel's handle: its name, the number and sizes of its parameters, what runs it (null: nothing does)."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.c_int),
        ("sizes", ctypes.POINTER(ctypes.c_size_t)),
        ("run", ctypes.c_void_p),
    ]


def function(name: str, *sizes: int) -> Function:
    """A kernel that does nothing, for parameters of these sizes."""
    return Function(name.encode(), len(sizes), (ctypes.c_size_t * max(len(sizes), 1))(*sizes), None)


@functools.cache
def compiled(*flags: str) -> str:
    """Path of the library with both; it stays until the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="null-driver-")
    _folders.append(folder)
    path = str(Path(folder.name, "libnull.so"))
    sources = [str(SOURCES / name) for name in ("null_driver.c", "null_blaslt.c")]
    compiler = shutil.which(os.environ.get("CC", "cc"))
    command = [str(compiler), "-std=gnu11", "-O2", "-fPIC", "-shared", *flags, *sources, "-o", path, "-lpthread", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RuntimeError(f"the null driver does not compile:\n{done.stderr}")
    return path


_folders: list[Any] = []


class NullDriver:
    """The library of `compiled()`, as tests see it from behind."""

    def __init__(self) -> None:
        self.path = compiled()
        self._library = library = ctypes.CDLL(self.path)
        library.null_launch.restype = ctypes.POINTER(Launch)
        library.null_product.restype = ctypes.POINTER(Multiplied)
        for name in ("null_launched", "null_synchronized", "null_multiplied", "null_asked", "null_created"):
            getattr(library, name).restype = ctypes.c_long
        self._heard: Any = None

    def reset(self) -> None:
        """Forget what was launched, and fail and refuse nothing."""
        self._library.null_reset()
        self._library.null_blaslt_reset()

    def listen(self, heard: Callable[[str], None] | None) -> None:
        """Call `heard(name)` after each launch and product ("matmul")."""
        kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
        self._heard = None if heard is None else kind(lambda name: heard(name.decode()))
        self._library.null_listen(self._heard)

    def fail(self, status: int, after: int = 0, ever_after: bool = False) -> None:
        """Let the launch or product that follows `after` more give `status`, and `ever_after` all later ones."""
        self._library.null_fail(after, status, int(ever_after))

    def refuse(self, epilogues: int = 0, all: bool = False) -> None:
        """Have no algorithm for products with one of these epilogues, or for none at all."""
        self._library.null_refuse(epilogues, int(all))

    @property
    def launches(self) -> list[Launch]:
        """The launches since the reset, the last 64 of them."""
        count = self._library.null_launched()
        return [self._library.null_launch(i).contents for i in range(max(0, count - 64), count)]

    @property
    def products(self) -> list[Multiplied]:
        """The products since the reset, the last 64 of them."""
        count = self._library.null_multiplied()
        return [self._library.null_product(i).contents for i in range(max(0, count - 64), count)]

    @property
    def asked(self) -> int:
        """How often algorithms were asked for."""
        return int(self._library.null_asked())

    @property
    def created(self) -> int:
        """How many handles of cuBLASLt were made."""
        return int(self._library.null_created())

    @property
    def synchronized(self) -> int:
        """How often the host waited for a stream."""
        return int(self._library.null_synchronized())
