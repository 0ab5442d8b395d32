"""resilin: torch-free distributed elastic training with PyTorch's names.

`import resilin` loads next to nothing: names are resolved on first use, so agents and launchers never import numpy.
Tensor functions and dtypes live in `resilin.core.public.names`, everything else in the sub-packages.
"""

from __future__ import annotations

import importlib
from typing import Any

from resilin._base import env as _env
from resilin._base import lazy as _lazy
from resilin._base import place_finder as _place_finder
from resilin._base import places as _places

__version__ = "0.1.0"

_PACKAGES = frozenset(
    (
        "amp",
        "array_api",
        "as_torch",
        "autograd",
        "backends",
        "checkpoint",
        "core",
        "cuda",
        "data",
        "ddp",
        "dist",
        "elastic",
        "errors",
        "fft",
        "func",
        "futures",
        "launcher",
        "linalg",
        "nn",
        "optim",
        "overrides",
        "random",
        "signal",
        "special",
        "store",
        "testing",
        "utils",
        "zero",
    )
)
_ANOMALY = ("is_anomaly_enabled", "is_anomaly_check_nan_enabled", "set_anomaly_enabled")
_OLDER = ("lu", "lu_solve", "lu_unpack", "orgqr", "pca_lowrank", "svd_lowrank", "triangular_solve")
_MOVED = dict.fromkeys(_ANOMALY, "resilin.core.autograd.anomaly") | dict.fromkeys(_OLDER, "resilin.linalg.older")
_MOVED |= {
    "vmap": "resilin.core.autograd.vmap",
    "save": "resilin.core.serialize",
    "load": "resilin.core.serialize",
    "OutOfMemoryError": "resilin.errors",
}

_place_finder.install()
if _env.get("TORCHELASTIC_ERROR_FILE"):  # whoever started this process as a worker learns what ended it
    importlib.import_module("resilin._base.uncaught").watch_worker()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES or name in _places.roots():
        with _lazy.lock:
            return importlib.import_module(f"resilin.{name}")
    if name in _places.ABSENT:
        instead = _places.ABSENT[name]
        raise AttributeError(
            f"resilin.{name} is not part of resilin {__version__}: {instead}; docs/parity.md says what is"
        )
    if name.startswith("__"):
        raise AttributeError(f"module 'resilin' has no attribute {name!r}")
    with _lazy.lock:
        module = importlib.import_module(_MOVED.get(name, "resilin.core.public.names"))
    try:
        value = getattr(module, name)
    except AttributeError:
        raise AttributeError(f"module 'resilin' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    with _lazy.lock:
        names = importlib.import_module("resilin.core.public.names")
    own = {name for name in globals() if name.startswith("__")}
    return sorted({*own, *_PACKAGES, *_places.roots(), *_MOVED, *names.__all__})
