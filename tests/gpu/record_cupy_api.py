"""Records which of numpy's names CuPy has, and with which parameters: `cupy_api.json`, which the stand-in obeys.

    PYTHON_WITH_CUPY tests/gpu/record_cupy_api.py

CuPy's wheels can be imported without a GPU, so this runs anywhere; it is run by hand when a newer CuPy is supported.
"""

import inspect
import json
from pathlib import Path
from types import ModuleType

import cupy
import cupyx.scipy.special
import numpy as np
import scipy.special

OUT = Path(__file__).with_name("cupy_api.json")
NOTHING_TO_SAY = (TypeError, ValueError)  # what inspect raises for callables without a signature


def parameters(function: object) -> list[str] | None:
    """Names of the parameters, variadic ones with their stars; None where CuPy does not say."""
    try:
        found = inspect.signature(function).parameters.values()
    except NOTHING_TO_SAY:
        return None
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(p.kind, "") + p.name for p in found]


def functions(theirs: ModuleType, ours: ModuleType) -> dict[str, list[str] | None]:
    """The functions (and ufuncs) that both modules have."""
    return {
        name: parameters(getattr(theirs, name))
        for name, value in sorted(vars(ours).items())
        if callable(value)
        and not isinstance(value, type)
        and not name.startswith("_")
        and callable(getattr(theirs, name, None))
    }


def main() -> None:
    """Write the file."""
    recorded = {
        "version": cupy.__version__,
        "numpy": functions(cupy, np),
        "linalg": functions(cupy.linalg, np.linalg),
        "fft": functions(cupy.fft, np.fft),
        "special": functions(cupyx.scipy.special, scipy.special),
        "ndarray": [name for name in dir(np.ndarray) if hasattr(cupy.ndarray, name)],
    }
    lines = []
    for key, value in recorded.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
