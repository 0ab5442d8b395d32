"""Run programs for PyTorch, unchanged, on resilin: `python -m resilin.as_torch SCRIPT ARGS`. See README.md.

`install()` does it in a running process: from then on `import torch` and `torch.*` give resilin's modules, here and in
the processes that this one starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import resilin
from resilin._base import env
from resilin._base.place_finder import Same
from resilin.errors import UsageError

__all__ = ["install"]

_HERE = os.path.dirname(__file__)
METADATA = os.path.join(_HERE, "_metadata")
MODULES = os.path.join(_HERE, "_modules")  # a folder with a module `torch`, which calls `install`


class TorchFinder:
    """Finds `torch` and what is below it: the modules of resilin with the same path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how `fullname` is loaded, None where it is not PyTorch's."""
        if fullname != "torch" and not fullname.startswith("torch."):
            return None
        home: Any = Same("resilin" + fullname[len("torch") :])
        return ModuleSpec(fullname, home)

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """Give `importlib.metadata`, which asks, the version of PyTorch whose names are followed."""
        if context.name in (None, "torch"):
            yield sys.modules["importlib.metadata"].PathDistribution(Path(METADATA))


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
    if MODULES not in sys.path:
        sys.path.insert(1, MODULES)  # where PYTHONPATH stands: spawned processes get this list
    env.prepend_path("PYTHONPATH", MODULES)
    sys.modules["torch"] = resilin
