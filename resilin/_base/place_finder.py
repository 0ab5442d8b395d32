"""Make imports follow the table of `places.py`: `import resilin.distributed` gives the module `resilin.dist`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from resilin._base import lazy
from resilin._base.places import ABSENT, GATHERED, home_of

ROOT = "resilin."


class PlaceFinder:  # no subclass of importlib.abc's, whose import takes longer than resilin's
    """Finds the places of the table. It comes before the files: below another name these would load twice."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how `fullname` is loaded, None where it is a module of its own.

        ModuleNotFoundError says what there is instead of a place of PyTorch that has nothing here.
        """
        if not fullname.startswith(ROOT):
            return None
        place = fullname[len(ROOT) :]
        if place in GATHERED:
            return self._spec(fullname, _Gathered(GATHERED[place]), is_package=True)
        if place in ABSENT:
            text = f"No module named {fullname!r}: {ABSENT[place]}; docs/parity.md says what there is"
            raise ModuleNotFoundError(text, name=fullname)
        home = home_of(place)
        return None if home is None else self._spec(fullname, Same(ROOT + home), is_package=False)

    @staticmethod
    def _spec(fullname: str, loader: Any, is_package: bool) -> ModuleSpec:  # Any: they are loaders by shape
        return ModuleSpec(fullname, loader, is_package=is_package)


class Same:
    """Puts the home in the place of the module that the import system made."""

    def __init__(self, home: str) -> None:
        self._home = home

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace `module`, which knows nothing, by the home."""
        sys.modules[module.__name__] = importlib.import_module(self._home)

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the home's code, which `python -m` runs."""
        loader: Any = importlib.import_module(self._home).__loader__
        code: CodeType | None = loader.get_code(self._home)
        return code


class _Gathered:
    """Gives a module whose names are loaded from their homes on first use."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Give `module` its names, of which none is loaded yet."""
        own, homes = vars(module), self._homes

        def load(name: str) -> Any:
            if name not in homes:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            with lazy.lock:
                own[name] = getattr(importlib.import_module(ROOT + homes[name]), name)
            return own[name]

        own["__doc__"] = "PyTorch's place for " + ", ".join(sorted(homes)) + "."
        own["__all__"] = sorted(homes)
        own["__getattr__"] = load
        own["__dir__"] = lambda: sorted({*own, *homes})


def install() -> None:
    """Make imports follow the table from now on, once in a process."""
    if not any(isinstance(finder, PlaceFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PlaceFinder())
