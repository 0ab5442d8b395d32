"""The CUDA sources and the instances of their templates that are used. No CUDA library is needed to read them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

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


def _instances(names: tuple[str, ...], types: dict[str, tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{name}<{element}, {wide}>" for name in names for element, wide in types.values())


KERNELS: dict[str, tuple[str, ...]] = {
    "layer_norm": (
        *_instances(("layer_norm_forward", "layer_norm_backward", "layer_norm_partials"), FLOATS),
        "layer_norm_total<float>",
        "layer_norm_total<double>",
    ),
    "row_sums": _instances(("row_sums",), FLOATS | INTEGERS),
}
"""Source file (without `.cu`) -> every instance of its kernels that a twin launches."""


@functools.cache
def text(name: str) -> str:
    """The source of `name`.cu, with a line that makes a compiler's errors name the file."""
    path = _FOLDER / f"{name}.cu"
    return f'#line 1 "{path.name}"\n{path.read_text()}'


def types_of(dtype: Any) -> tuple[str, str] | None:
    """(element, type computed in) of a numpy dtype; None where no kernel is made for it."""
    return (FLOATS | INTEGERS).get(dtype.name)
