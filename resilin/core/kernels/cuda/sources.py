"""The CUDA sources and the instances of their templates that are used. No CUDA library is needed to read them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from resilin.core.kernels.pack import BFLOAT16

_FOLDER = Path(__file__).parent

OPTIONS = ("--std=c++17",)
"""What every compilation gets; multiply-adds are fused (the compiler's default), divisions and roots are exact."""

# numpy's name of a dtype -> the type of an element and the type that it is computed in
FLOATS = {
    "float32": ("float", "float"),
    "float64": ("double", "double"),
    "float16": ("__half", "float"),
    "bfloat16": ("__nv_bfloat16", "float"),
}
INTEGERS = {"int32": ("int", "int"), "int64": ("long long", "long long")}


# bytes of an element -> a type of that size, for what only moves elements
BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}


def _instances(names: tuple[str, ...], types: dict[str, tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{name}<{element}, {wide}>" for name in names for element, wide in types.values())


KERNELS: dict[str, tuple[str, ...]] = {
    "layer_norm": _instances(("layer_norm_forward", "layer_norm_backward"), FLOATS),
    "row_sums": _instances(("row_sums",), FLOATS | INTEGERS),
    "rows": (
        *_instances(("softmax_forward", "softmax_backward"), FLOATS),
        *_instances(("attention_weights", "attention_weights_backward"), FLOATS),
        *_instances(("cross_entropy_forward", "cross_entropy_backward"), FLOATS),
        *(f"take_rows<{element}>" for element in BITS.values()),
    ),
    "batch_norm": _instances(("batch_norm_forward", "batch_norm_backward"), FLOATS),
    "pool": _instances(("max_pool_forward", "max_pool_backward"), FLOATS),
    "index_range": tuple(f"index_range<{element}>" for element, _ in INTEGERS.values()),
    "philox": (
        "dropout_mask",
        "normal",
        *(f"uniform<{e}>" for e, _ in FLOATS.values()),
        *_instances(("bernoulli",), FLOATS),
    ),
    "unscale": _instances(("unscale",), FLOATS),
    "windows": (*(f"im2col<{element}>" for element in BITS.values()), *_instances(("col2im",), FLOATS)),
}
"""Source file (without `.cu`) -> every instance of its kernels that a twin launches."""


GENERATED: dict[str, str] = {}
"""Name of a kernel that is made by tracing -> its source. The source has one kernel, of the same name."""

EXACT = ("--fmad=false",)
"""What compilations of generated kernels, and of those in ROUNDED, get besides: they round each product."""
ROUNDED = frozenset({"philox"})


@functools.cache
def _read(file: str) -> str:
    """A file of this folder and those that it includes, with lines that make a compiler's errors name them."""
    lines = [f'#line 1 "{file}"']
    for number, line in enumerate((_FOLDER / file).read_text().splitlines(), 1):
        included = line.removeprefix('#include "').removesuffix('"')
        lines += [line] if included == line else [_read(included), f'#line {number + 1} "{file}"']
    return "\n".join([*lines, ""])


def text(name: str) -> str:
    """The source of `name`.cu, or of the generated kernel `name` with what it stands on."""
    generated = GENERATED.get(name)
    return _read(f"{name}.cu") if generated is None else f"{_read('traced.cuh')}\n{generated}"


def text_of_all(names: Iterable[str]) -> str:
    """Several generated kernels in one source."""
    return "\n".join([_read("traced.cuh"), *[GENERATED[name] for name in names]])


def instances(name: str) -> tuple[str, ...]:
    """The kernels of the source `name`."""
    return (name,) if name in GENERATED else KERNELS[name]


def options(name: str) -> tuple[str, ...]:
    """What the compilation of the source `name` gets."""
    return (*OPTIONS, *EXACT) if name in GENERATED or name in ROUNDED else OPTIONS


def filled(template: str, **parts: str | list[str]) -> str:
    """The text of `template`.cu with a value for each name that begins with $, but `$name`; a list fills lines."""
    lines = {}
    for name, value in parts.items():
        lines[name] = value if isinstance(value, str) else "\n        ".join(value)
    return Template(_read(f"{template}.cu")).safe_substitute(lines)


def add_generated(stem: str, body: str) -> str:
    """Keep a generated source, whose kernel is `$name` in it; gives the name, which begins with `stem`."""
    name = f"{stem}_{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    GENERATED[name] = Template(body).substitute(name=name)
    return name


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a name in FLOATS, or of numpy's."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def types_of(dtype: Any) -> tuple[str, str] | None:
    """(element, type computed in) of a numpy dtype; None where no kernel is made for it."""
    return (FLOATS | INTEGERS).get(dtype.name)
