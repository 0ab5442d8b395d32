"""Make imports follow the table of `places.py`: `import resilin.distributed` gives the module `resilin.distributed`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from resilin._base import lazy
from resilin._base.places import ABSENT, ADDED, CHILDREN, GATHERED, LACKING, home_of, names

ROOT = "resilin."
shown_root = "resilin"  # the package that values name when they are shown; as_torch.install() writes PyTorch's


class PlaceFinder:  # no subclass of importlib.abc's, whose import takes longer than resilin's
    """Finds the places of the table. It comes before the files: below another name these would load twice."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how `fullname` is loaded, None where the table says nothing of it.

        ModuleNotFoundError says what there is instead of a place of PyTorch that has nothing here.
        """
        if not fullname.startswith(ROOT):
            return None
        place = fullname[len(ROOT) :]
        if place in GATHERED:
            return _spec(fullname, _Gathered(place), is_package=True)
        parent, _, last = place.rpartition(".")
        absent = place if place in ABSENT else LACKING.get(parent, {}).get(last)  # the latter: below a home
        if absent is not None and (absent == place or self._after_this(fullname, path, target) is None):
            text = f"No module named {fullname!r}: {ABSENT[absent]}; docs/parity.md says what there is"
            raise ModuleNotFoundError(text)  # without its name, by which `from ... import` would know and drop it
        if place in ADDED or place in CHILDREN or place in LACKING:
            spec = self._after_this(fullname, path, target)
            if spec is not None:
                adding: Any = CompletingLoader(spec.loader, lambda module: _add(module, place, ADDED.get(place, {})))
                spec.loader = adding
            return spec
        home = home_of(place)
        return None if home is None else same(fullname, ROOT + home)

    def _after_this(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None


def same(fullname: str, home: str) -> ModuleSpec | None:
    """Return how `fullname` becomes another name of the module `home`; None where there is no such module.

    Finders run under Python's import lock and may not import anything: other threads that do would wait for it.
    """
    parent = home.rpartition(".")[0]
    loaded = sys.modules.get(parent)
    above = [os.path.join(folder, *parent.split(".")[1:]) for folder in sys.modules["resilin"].__path__]
    path = above if loaded is None else getattr(loaded, "__path__", None)
    for finder in sys.meta_path if path is not None else ():
        there = finder.find_spec(home, path)
        if there is not None:
            return _spec(fullname, _Same(home), is_package=there.submodule_search_locations is not None)
    return None


def _spec(fullname: str, loader: Any, is_package: bool) -> ModuleSpec:  # Any: they are loaders by shape
    return ModuleSpec(fullname, loader, is_package=is_package)


class _Same:
    """Puts the home in the place of the module that the import system made."""

    def __init__(self, home: str) -> None:
        self._home = home

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace `module`, which knows nothing, by the home."""
        home = sys.modules[module.__name__] = _load(self._home)
        for name in {*vars(home), *vars(home).get("__all__", ())}:
            below = sys.modules.get(f"{self._home}.{name}")
            if below is not None and vars(home).get(name) is not below:
                _keep_apart(f"{module.__name__}.{name}", below)

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the home's code, which `python -m` runs."""
        spec: Any = _load(self._home).__spec__
        code: CodeType | None = spec.loader.get_code(spec.name)
        return code


class CompletingLoader:
    """Loads a module by its own loader, and calls `complete` with it."""

    def __init__(self, loader: Any, complete: Callable[[ModuleType], None]) -> None:
        self._loader, self._complete = loader, complete

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's file, whose loader is the module's from then on, and complete it."""
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._complete(module)


class _Gathered:
    """Gives a module whose names are loaded from their homes on first use."""

    def __init__(self, place: str) -> None:
        self._place = place

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Give `module` its names, of which none is loaded yet."""
        homes = GATHERED[self._place]
        module.__doc__ = "PyTorch's place for " + (", ".join(sorted(names(homes))) or "the modules below it") + "."
        _add(module, self._place, homes)


def _add(module: ModuleType, place: str, homes: Mapping[str, str]) -> None:
    """Give `module`, which is `place`, the names of `homes` and the places below it, to be loaded on first use."""
    own, found, below, lacking = vars(module), names(homes), CHILDREN.get(place, {}), LACKING.get(place, {})
    load_own, list_own = own.get("__getattr__"), own.get("__dir__")

    def load(name: str) -> Any:
        if name in found:
            home, there = found[name]
            with lazy.lock:
                own[name] = getattr(_load(ROOT + home), there)
            return own[name]
        if name in below:
            with lazy.lock:
                return _load(ROOT + below[name])
        if load_own is not None and name not in lacking:
            return load_own(name)
        hint = f": {ABSENT[lacking[name]]}" if name in lacking else ""
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}{hint}", name=name, obj=module)

    if found:
        defined = {name for name, value in own.items() if getattr(value, "__module__", None) == module.__name__}
        listed = own.get("__all__", [name for name in defined if not name.startswith("_")])
        own["__all__"] = sorted({*listed, *(name for name in found if not name.startswith("_"))})
    if below or lacking:
        own.setdefault("__path__", [])  # a file with places below it is a package
    own["__getattr__"] = load
    own["__dir__"] = lambda: sorted({*(own if list_own is None else list_own()), *found, *below})
    for name, child in below.items():
        if name in found or (name in own and not isinstance(own[name], ModuleType)):
            _keep_apart(f"{module.__name__}.{name}", _gathered(f"{module.__name__}.{name}", child))


def _load(fullname: str) -> ModuleType:
    """Import a module after its packages: who waits for a package holds no module that its file imports."""
    for end in [at for at, letter in enumerate(fullname) if letter == "."]:
        importlib.import_module(fullname[:end])
    return importlib.import_module(fullname)


def _gathered(fullname: str, place: str) -> ModuleType:
    """Return what the import system would make of a gathered place. Without importlib.util, which is slow to load."""
    module, loader = ModuleType(fullname), _Gathered(place)
    module.__spec__ = _spec(fullname, loader, is_package=True)
    module.__loader__, module.__package__, module.__path__ = module.__spec__.loader, fullname, []
    loader.exec_module(module)
    return module


def _keep_apart(fullname: str, module: ModuleType) -> None:
    """Let an import find `module`, whose parent has something else of this name, a function mostly.

    What the import system loads it binds in the parent, over the function; what it finds here it does not.
    """
    sys.modules.setdefault(fullname, module)


def install() -> None:
    """Make imports follow the table from now on, once in a process."""
    if not any(isinstance(finder, PlaceFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PlaceFinder())
