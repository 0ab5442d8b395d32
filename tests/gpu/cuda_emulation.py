"""Compiles the project's `.cu` files for the host and runs them there, thread by thread.

By `emulated/emulate.hpp`, or by `plain.hpp` where threads never wait for one another, which compiles more quickly.
What was compiled is kept by its text, for all processes and later runs.
The kernels' own text is what runs: indexing, barriers, shuffles and the order of sums are tested, speed is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from device_work import WORK

from resilin.core.kernels.cuda import sources

HEADERS = Path(__file__).with_name("emulated"), Path(__file__).with_name("null_driver")
KEPT = Path(__file__).parents[2] / "build" / "emulated"  # so that the workers of a run do not compile the same again


def compiler() -> str | None:
    """A C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "c++"))


FLAGS = ("-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", "-Wno-unknown-pragmas", "-Werror=invalid-pch")
LEVELS = {"plain.hpp": "-O0", "emulate.hpp": "-O1"}
KEPT_S = 7 * 24 * 3600.0  # that a library lies unused


@functools.cache
def _folder() -> Path:
    """Where what was compiled is kept: for this compiler and these headers, under build/."""
    version = subprocess.run([str(compiler()), "--version"], capture_output=True, stdin=subprocess.DEVNULL, check=True)
    what = hashlib.sha256(version.stdout + repr((FLAGS, LEVELS)).encode() + sources.text_of_all(()).encode())
    for header in sorted(file for folder in HEADERS for file in folder.iterdir()):
        what.update(header.read_bytes())
    folder = KEPT / what.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for file in KEPT.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):  # another process looks through them, too
            if file.stat().st_mtime < time.time() - KEPT_S:
                file.unlink()
    return folder


def _made(path: Path, command: list[str], source: str, name: str) -> Path:
    """`path`, which the command makes of the source where it is not there yet; whoever is second writes the same."""
    if path.exists():
        os.utime(path)
        return path
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as folder:
        text, made = Path(folder, "source.cpp"), Path(folder, "made")
        text.write_text(source)
        done = subprocess.run(
            [str(compiler()), *command, str(text), "-o", str(made)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise CompileException(f"{name} does not compile for the host:\n{done.stderr}")
        made.replace(path)
    return path


@functools.cache  # each module of tests has a stand-in of its own, which asks for the same kernels again
def _compiled(header: str, code: str, launchers: str, name: str) -> ctypes.CDLL:
    """The library of a source; `name` is told when it does not compile. What all sources begin with is parsed once."""
    flags = [*FLAGS, LEVELS[header], *(f"-I{folder}" for folder in HEADERS)]
    first = f'#include "{header}"\n#include "described.hpp"\n'
    common = sources.text_of_all(())
    if code.startswith(common):
        first, code = first + common, code.removeprefix(common)
    text = f"{code}\n{launchers}\n"
    begin = _kept(first, ".hpp.gch").with_suffix("")  # a name is enough for the compiler to find what it parsed
    _made(_kept(first, ".hpp.gch"), [*flags, "-x", "c++-header"], first, header)
    return ctypes.CDLL(str(_made(_kept(first + text, ".so"), [*flags, "-include", str(begin)], text, name)))


def _kept(text: str, suffix: str) -> Path:
    return _folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{suffix}"


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
        launchers = "\n".join(
            f'extern "C" void {symbol}(const unsigned* s, void** values) {{'
            f" emulated::launch(&{name}, {{s[0], s[1], 1}}, {{s[2], s[3], 1}}, values); }}\n"
            f'extern "C" const NullFunction {symbol}_function ='
            f' emulated::described(&{name}, "{name}", {symbol});'
            for name, symbol in self._names.items()
        )
        waits = "__syncthreads" in code or "__shfl" in code
        self._library = _compiled("emulate.hpp" if waits else "plain.hpp", code, launchers, name_expressions[0])

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
