"""resilin: torch-free distributed elastic training with PyTorch's names.

`import resilin` loads next to nothing: names are resolved on first use, so agents and launchers never import numpy.
Tensor functions and dtypes live in `resilin.core.public.names`, everything else in the sub-packages.
"""

from __future__ import annotations

import importlib
from typing import Any

from resilin._base import env as _env
from resilin._base import lazy as _lazy
from resilin._base import library_finder as _library_finder
from resilin._base import place_finder as _place_finder
from resilin._base import places as _places

__version__ = "0.1.0"

_PACKAGES = frozenset(
    (
        "accelerator",
        "amp",
        "array_api",
        "as_torch",
        "autograd",
        "backends",
        "checkpoint",
        "compiler",
        "core",
        "cuda",
        "data",
        "ddp",
        "distributed",
        "distributions",
        "elastic",
        "errors",
        "fft",
        "func",
        "futures",
        "hub",
        "jit",
        "launcher",
        "library",
        "linalg",
        "multiprocessing",
        "nn",
        "onnx",
        "ops",
        "optim",
        "overrides",
        "profiler",
        "random",
        "signal",
        "special",
        "store",
        "testing",
        "types",
        "utils",
        "version",
        "zero",
    )
)
_ANOMALY = ("is_anomaly_enabled", "is_anomaly_check_nan_enabled", "set_anomaly_enabled")
_OLDER = ("lu", "lu_solve", "lu_unpack", "orgqr", "pca_lowrank", "svd_lowrank", "triangular_solve")
_MOVED = dict.fromkeys(_ANOMALY, "resilin.core.autograd.anomaly") | dict.fromkeys(_OLDER, "resilin.linalg.older")
_CHECKS = "_assert _check _check_index _check_is_size _check_not_implemented _check_tensor_all _check_tensor_all_with"
_MOVED |= dict.fromkeys(
    (*_CHECKS.split(), "_check_type", "_check_value", "_check_with"), "resilin.core.public.asserting"
)
_MOVED |= {
    "compile": "resilin.compiler",
    "is_deterministic": "resilin.core.determinism",
    "set_deterministic": "resilin.core.determinism",
    "typename": "resilin.core.public.asserting",
    "vmap": "resilin.core.autograd.vmap",
    "save": "resilin.core.serialize",
    "load": "resilin.core.serialize",
    "GradScaler": "resilin.amp",
    "autocast": "resilin.amp",
    "OutOfMemoryError": "resilin.errors",
    "AcceleratorError": "resilin.errors",
    "thread_safe_generator": "resilin.random",
}

_place_finder.install()
_library_finder.install()
if _env.get("TORCHELASTIC_ERROR_FILE"):  # whoever started this process as a worker learns what ended it
    importlib.import_module("resilin._base.excepthook").watch_worker()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES or name in _places.CHILDREN[""]:
        with _lazy.lock:
            return importlib.import_module(f"resilin.{name}")
    if name == "__all__":
        return _names()
    if name in _places.ABSENT:
        instead = _places.ABSENT[name]
        raise AttributeError(
            f"resilin.{name} is not part of resilin {__version__}: {instead}; docs/parity.md says what is"
        )
    if name.startswith("__"):
        raise AttributeError(f"module 'resilin' has no attribute {name!r}")
    with _lazy.lock:
        home = "resilin.core.api.foreach" if name.startswith("_foreach_") else "resilin.core.public.names"
        module = importlib.import_module(_MOVED.get(name, home))
    try:
        value = getattr(module, name)
    except AttributeError:
        raise AttributeError(f"module 'resilin' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def _names() -> list[str]:
    """Return what `from resilin import *` gives: as in PyTorch no packages."""
    with _lazy.lock:
        names = importlib.import_module("resilin.core.public.names")
    return sorted({*[name for name in _MOVED if not name.startswith("_")], *names.__all__})


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__")}
    return sorted({*own, *_PACKAGES, *_places.CHILDREN[""], *_names()})
