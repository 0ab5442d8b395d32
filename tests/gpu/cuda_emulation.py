"""Compiles the project's `.cu` files for the host and runs them there, thread by thread.

By `emulated/emulate.hpp`, or by `plain.hpp` where threads never wait for one another, which compiles more quickly.
The kernels' own text is what runs: indexing, barriers, shuffles and the order of sums are tested, speed is not.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from device_work import WORK

HEADERS = Path(__file__).with_name("emulated"), Path(__file__).with_name("null_driver")


def compiler() -> str | None:
    """A C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "c++"))


@functools.cache  # each module of tests has a stand-in of its own, which asks for the same kernels again
def _compiled(text: str, name: str) -> ctypes.CDLL:
    """The library of a source; `name` is told when it does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        source.write_text(text)
        level = "-O1" if '"emulate.hpp"' in text else "-O0"
        flags = ["-std=c++17", level, "-fPIC", "-shared", "-ffp-contract=off", "-Wno-unknown-pragmas"]
        folders = [f"-I{folder}" for folder in HEADERS]
        command = [str(compiler()), *flags, *folders, str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise CompileException(f"{name} does not compile for the host:\n{done.stderr}")
        return ctypes.CDLL(str(library))


class Kernel:
    """What `cupy.RawKernel` is for the stand-in, called as CuPy's: (grid, block, args)."""

    def __init__(self, library: Any, symbol: str, name: str, address: Any) -> None:
        self._run, self._name, self._address = getattr(library, symbol), name, address
        handle = ctypes.addressof(ctypes.c_char.in_dll(library, f"{symbol}_function"))
        self.kernel = SimpleNamespace(ptr=handle, library=library)  # what the null driver takes for a function

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
        if not all(grid) or max(block) > 1024:
            raise RuntimeError(f"{self._name}: CUDA refuses a grid of {grid} blocks of {block} threads")
        WORK.launches[self._name] += 1
        held = [_value(value, self._address) for value in args]
        values = (ctypes.c_void_p * len(held))(*(ctypes.cast(v, ctypes.c_void_p) for v in held))
        sizes = (*grid, 1)[:2] + (*block, 1)[:2]
        with _ONE_DEVICE:
            self._run((ctypes.c_uint * 4)(*sizes), values)


class CompileException(Exception):
    """CuPy's: the text is the compiler's."""


class Module:
    """What `cupy.RawModule` is for the stand-in; `address` says where an array of the device lies."""

    def __init__(self, code: str, name_expressions: Any, address: Any) -> None:
        self._address = address
        self._names = {name: f"instance_{i}" for i, name in enumerate(name_expressions)}
        instances = "\n".join(
            f'extern "C" void {symbol}(const unsigned* s, void** values) {{'
            f" emulated::launch(&{name}, {{s[0], s[1], 1}}, {{s[2], s[3], 1}}, values); }}\n"
            f'extern "C" const NullFunction {symbol}_function ='
            f' emulated::described(&{name}, "{name}", {symbol});'
            for name, symbol in self._names.items()
        )
        waits = "__syncthreads" in code or "__shfl" in code
        header = "emulate.hpp" if waits else "plain.hpp"
        text = f'#include "{header}"\n#include "described.hpp"\n{code}\n{instances}\n'
        self._library = _compiled(text, name_expressions[0])

    def get_function(self, name: str) -> Kernel:
        """The kernel `name`. KeyError for a name that was not announced."""
        return Kernel(self._library, self._names[name], name, self._address)


_ONE_DEVICE = threading.Lock()  # one launch at a time


def _value(value: Any, address: Any) -> Any:
    """A buffer with what the kernel gets: an array's address, or a scalar of numpy's."""
    if isinstance(value, np.generic):
        return ctypes.create_string_buffer(value.tobytes(), value.nbytes)
    where = address(value)
    if where is None:
        raise TypeError(f"Unsupported type {type(value)}: kernels get arrays of the device and numpy's scalars")
    return ctypes.pointer(ctypes.c_void_p(where))
