"""Let other libraries take resilin's tensors: when one of them is imported, its adapter in `resilin.adapters` runs.

Nothing of this loads a library, and a program that imports none of them pays for one more finder of modules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from resilin._base.place_finder import CompletingLoader

ADAPTERS: dict[str, str] = {  # module of a library -> what is run once it is imported
    "einops": "resilin.adapters.einops",
    "einx": "resilin.adapters.einx",
    "safetensors.numpy": "resilin.adapters.safetensors",
    "tensorboardX": "resilin.adapters.tensorboardx",
    "torchvision.extension": "resilin.adapters.torchvision",
}


class LibraryFinder:
    """Finds those libraries as the finders after it do, and has their adapters run when they are loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how `fullname` is loaded, None for everything that has no adapter."""
        if fullname not in ADAPTERS:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                adapting: Any = CompletingLoader(spec.loader, _adapt)
                spec.loader = adapting
                return spec
        return None


def _adapt(module: ModuleType) -> None:
    importlib.import_module(ADAPTERS[module.__name__]).adapt(module)


def install() -> None:
    """Run adapters from now on, and at once those of libraries that are here already; once in a process."""
    if any(isinstance(finder, LibraryFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, LibraryFinder())
    for name in ADAPTERS:
        there = sys.modules.get(name)
        if there is not None:
            _adapt(there)
