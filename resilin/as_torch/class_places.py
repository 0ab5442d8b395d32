"""Lets classes name PyTorch's places: `str(type(x))` is "<class 'torch.Tensor'>", which programs ask for.

A class of `resilin.nn`, `optim` or `data` is at the same path below `torch`, where pickles find it again; those of the
core that stand at PyTorch's root are at `torch` itself. They are renamed when their module has been loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from resilin._base.place_finder import CompletingLoader

_BELOW = {"resilin.data.": "torch.utils.data.", "resilin.nn.": "torch.nn.", "resilin.optim.": "torch.optim."}
_PACKAGES = tuple(_BELOW)  # whose classes are at the same path below another name
_AT_ROOT: dict[str, dict[str, str]] = {  # module -> class -> place
    "resilin.core.device": {"device": "torch"},
    "resilin.core.dtype": {"dtype": "torch"},
    "resilin.core.state.size": {"Size": "torch"},
    "resilin.core.tensor": {"Parameter": "torch.nn.parameter", "Tensor": "torch"},
}


class ClassPlaceFinder:
    """Finds these modules as the finders after it do, and has their classes renamed when they are loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how `fullname` is loaded, None for modules whose classes stay where they are."""
        if fullname not in _AT_ROOT and not fullname.startswith(_PACKAGES):
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.origin is not None:  # a file of its own, not another name of one
                    naming: Any = CompletingLoader(spec.loader, _rename)
                    spec.loader = naming
                return spec
        return None


def _rename(module: ModuleType) -> None:
    places, own = _AT_ROOT.get(module.__name__), module.__name__
    for package, place in _BELOW.items():
        own = place + own.removeprefix(package) if own.startswith(package) else own
    for name, value in list(vars(module).items()):
        if isinstance(value, type) and value.__module__ in (module.__name__, "resilin"):
            value.__module__ = own if places is None else places.get(name, value.__module__)
    if places is None:
        sys.modules.setdefault(own, module)  # where `inspect` and `typing` look for what a class was written among


def install() -> None:
    """Rename classes from now on, and at once those of modules that are here already."""
    sys.meta_path.insert(0, ClassPlaceFinder())
    for name, module in list(sys.modules.items()):
        if (name in _AT_ROOT or name.startswith(_PACKAGES)) and module.__name__ == name:
            _rename(module)
