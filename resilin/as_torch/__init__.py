"""Run programs for PyTorch, unchanged, on resilin: `python -m resilin.as_torch SCRIPT ARGS`. See README.md.

`install()` does it in a running process: from then on `import torch` and `torch.*` give resilin's modules, here and in
the processes that this one starts.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import resilin
from resilin._base import env, place_finder
from resilin._base.place_finder import same
from resilin.as_torch import class_places
from resilin.errors import UsageError

__all__ = ["VERSION", "install"]

VERSION = f"2.13.0+resilin{resilin.__version__}"  # the PyTorch whose names are followed; also in torch.egg-info
MODULES = os.path.join(os.path.dirname(__file__), "_modules")  # a folder with a package `torch` and its metadata
_OWN = os.path.join(MODULES, "torch")


class TorchFinder:
    """Finds `torch` and what is below it: the modules of resilin with the same path, but for those of `_modules`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how `fullname` is loaded, None where it is not PyTorch's.

        ModuleNotFoundError says what there is instead of a place that has nothing here.
        """
        top, _, place = fullname.partition(".")
        if top != "torch":
            return None
        if not place:
            file = os.path.join(_OWN, "__init__.py")
            return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=[_OWN])
        own = os.path.join(_OWN, *place.split("."))
        if os.path.exists(f"{own}.py"):
            return importlib.util.spec_from_file_location(fullname, f"{own}.py")
        if os.path.exists(os.path.join(own, "__init__.py")):
            file = os.path.join(own, "__init__.py")
            return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=[own])
        try:
            return same(fullname, f"resilin.{place}")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(str(error).replace("named 'resilin.", "named 'torch.", 1)) from None


def install() -> None:
    """Let `torch` mean resilin in this process and in those it starts, which find it by PYTHONPATH.

    UsageError where PyTorch is imported already: its objects and ours do not mix.
    """
    if any(isinstance(finder, TorchFinder) for finder in sys.meta_path):
        return
    there = sys.modules.get("torch")
    if there is not None and not (there.__file__ or "").startswith(MODULES):
        raise UsageError(
            f"as_torch: PyTorch is imported already, from {there.__file__}; expected none. Install before anything "
            "imports torch, or run the program by `python -m resilin.as_torch`"
        )
    sys.meta_path.insert(0, TorchFinder())
    class_places.install()
    place_finder.shown_root = "torch"  # programs compare str(x.dtype) with "torch.float32"
    if MODULES not in sys.path:
        sys.path.insert(1, MODULES)  # where PYTHONPATH stands: spawned processes get this list
    env.prepend_path("PYTHONPATH", MODULES)
