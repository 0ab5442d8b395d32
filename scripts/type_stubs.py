"""Writes what type checkers and editors need to know of names that are loaded on first use.

python scripts/type_stubs.py            name the files that are not as they should be; exit code 1 if there are any
python scripts/type_stubs.py --write    write them

- `resilin-stubs`, a partial stub package beside `resilin`: the names of the root, and PyTorch's places without a file,
  from the table of `resilin/_base/places.py`. Where it has nothing, checkers read the source.
- `operator_types.pyi`: what `resilin/core/public/methods.py` attaches to Tensor.
- In a module to which the table adds names or places: the block of imports below `MARK`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import signatures
from signatures import Names

import resilin
from resilin._base import places
from resilin.core.api import foreach
from resilin.core.ops import calling
from resilin.core.state import inplace

ROOT = Path(__file__).resolve().parent.parent
STUBS = ROOT / "resilin-stubs"
OPERATORS = STUBS / "core" / "public" / "operator_types.pyi"
PYTORCH = ROOT / "tests" / "fixtures" / "torch_places.json"
NAMES, TENSOR = "resilin.core.public.names", "resilin.core.tensor"
WRITTEN = "Written by scripts/type_stubs.py."
MARK = "if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py\n"


def files() -> dict[Path, str]:
    """Everything that this script writes: path -> text."""
    stubs = {STUBS / "py.typed": "partial\n", STUBS / "__init__.pyi": root_stub(), OPERATORS: tensor_stub()}
    return {**stubs, **dict(place_stubs()), **dict(blocks())}


# -- places


def stubbed() -> dict[str, str | None]:
    """The places without a file: those of the table, and PyTorch's below them. Values are the homes of other names."""
    found: dict[str, str | None] = dict.fromkeys(places.GATHERED)
    pytorch = json.loads(PYTORCH.read_text())
    for place in (*places.SAME, *_below_former(pytorch), *pytorch):
        home = places.home_of(place)
        if home is not None:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(f"resilin.{place}")
                found[place] = home
    return found


def _below_former(pytorch: Iterable[str]) -> Iterator[str]:
    """The modules below packages that PyTorch had once: its list, which is today's, does not have them."""
    for place in places.SAME:
        if "." in place and place not in pytorch:
            module = importlib.import_module(f"resilin.{place}")
            for info in pkgutil.walk_packages(getattr(module, "__path__", ()), f"resilin.{places.SAME[place]}."):
                yield place + info.name.removeprefix(f"resilin.{places.SAME[place]}")


def place_stubs() -> Iterator[tuple[Path, str]]:
    """A stub for each of them."""
    found = stubbed()
    for place, home in found.items():
        module = importlib.import_module(f"resilin.{place}")
        below = sorted(one.rpartition(".")[2] for one in found if one.rpartition(".")[0] == place)
        lines = [f"from resilin.{home} import *"] if home else _gathered(places.GATHERED[place])
        lines += [f"from resilin.{place} import {name} as {name}" for name in below if _is_module(module, name)]
        path = STUBS.joinpath(*place.split("."))
        yield path / "__init__.pyi" if below else path.with_suffix(".pyi"), stub(f"resilin.{place}", lines)


def _gathered(homes: Mapping[str, str]) -> list[str]:
    names = Names()
    lines = [
        line
        for name, (home, there) in sorted(places.names(homes).items())
        for line in declared(name, f"resilin.{home}", there, names)
    ]
    return [*names.imports(), *lines]


def blocks() -> Iterator[tuple[Path, str]]:
    """The files of modules to which the table adds something, with their blocks."""
    for place in sorted({*places.ADDED, *places.CHILDREN} - {*places.GATHERED, ""}):
        module = importlib.import_module(f"resilin.{place}")
        path = Path(str(module.__file__))
        before, mark, after = path.read_text().partition(MARK)
        if not mark:
            raise LookupError(f"{path}: expected the line {MARK.strip()!r} below the imports, got none; add it")
        after = re.sub(r"\A(    .*\n)*", "", after)
        added = [(f"resilin.{home}", name) for name, (home, _) in places.names(places.ADDED.get(place, {})).items()]
        for name, below in places.CHILDREN.get(place, {}).items():
            if _is_module(module, name) and name not in signatures.bound(ast.parse(before)):
                added.append((f"resilin.{below}".rpartition(".")[0], name))
        lines = [f"    from {home} import {name} as {name}\n" for home, name in sorted(added, key=_in_order)]
        yield path, "".join((before, MARK, *lines, after))


def _in_order(line: tuple[str, str]) -> tuple[str, int, str]:
    module, name = line
    return module, 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name.casefold()


def _is_module(parent: ModuleType, name: str) -> bool:
    return isinstance(getattr(parent, name, None), ModuleType)


# -- names


def root_stub() -> str:
    """The stub of `resilin` itself. It has no `__getattr__`: a name that is not there is an error."""
    names, module = Names(), importlib.import_module(NAMES)
    lines = [f"from resilin import {name} as {name}" for name in sorted({*resilin._PACKAGES, *places.CHILDREN[""]})]
    for name, home in sorted(resilin._MOVED.items()):
        lines += declared(name, home, name, names)
    for name in sorted(module.__all__):
        if _origin(name)[0] == NAMES:
            lines.append(f"{name}: {_kind(getattr(module, name), names)}")
        else:
            lines += declared(name, NAMES, name, names)
    lines += [f"def {name}(*args: Any, **kwargs: Any) -> Any: ..." for name in sorted(foreach.FUNCTIONS)]
    return stub("resilin", ["__version__: str", *names.imports(), *lines])


def declared(name: str, module: str, there: str, names: Names) -> Iterator[str]:
    """The lines of a stub that declare what is `there` in `module` as `name`: an import, if checkers find it there."""
    if module == NAMES:
        module, there = _origin(there)
    value = getattr(importlib.import_module(module), there, None)
    if module == TENSOR and there in vars(resilin.Tensor):
        yield f"def {name}{signature(vars(resilin.Tensor)[there], 'input', names)}: ..."
    elif there not in signatures.typed(module) and signatures.source(signatures.unwrapped(value)):
        yield f"def {name}{signature(value, None, names)}: ..."
    elif name == there:
        yield f"from {module} import {there} as {name}"
    else:
        yield f"{name} = {names.alias(module, there)}"


def _origin(name: str) -> tuple[str, str]:
    """Where a name of the root is from: a module that defines it, a whole file that is passed on, or Tensor."""
    bound = signatures.bindings(NAMES)
    if name in bound:
        return bound[name]
    for alias, (package, module) in bound.items():
        if alias.startswith("_") and name in getattr(sys.modules.get(f"{package}.{module}"), "__all__", ()):
            return f"{package}.{module}", name
    return TENSOR, name


def _kind(value: Any, names: Names) -> str:
    kind = type(value)
    if value is None:
        return "None"
    return names.alias(kind.__module__, kind.__name__)


def signature(value: Any, first: str | None, names: Names) -> str:
    """`(parameters) -> result` of a function or method; `first` is what a method's first parameter is called."""
    function = signatures.unwrapped(value)
    result = signatures.returns(function, names)
    if signatures.is_made_in(function, inplace):  # what it does in place says what else it takes
        function = signatures.unwrapped(signatures.closed_over(function, "fn"))
    if signatures.is_made_in(function, calling):
        given = _operands(signatures.closed_over(function, "op"), names)
    else:
        given = signatures.parameters(function, names)
    if first is not None:
        given[0] = "self" if first == "self" else f"{first}: {names.alias(TENSOR, 'Tensor')}"
    return f"({', '.join(given)}) -> {result}"


def _operands(op: Any, names: Names) -> list[str]:
    """The parameters of a declared operation: its tensors, then its options."""
    tensor, anything = names.alias(TENSOR, "Tensor"), names.alias("typing", "Any")
    tensors = ("input", "other")[: op.n] if op.n < 3 else op.arguments[: op.n]
    kinds = (tensor, *[anything if op.elementwise else tensor] * op.n)
    given = [f"{name}: {kind}" for name, kind in zip(tensors, kinds, strict=False)]
    return given + [f"{name}: {anything} = ..." for name in op.arguments[op.n :]]


# -- Tensor

_OPERATORS = """
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror xor
    rxor lshift rlshift rshift rrshift lt le gt ge iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift
    irshift
""".split()  # noqa: SIM905 - as a list it would fill a page
_OTHERS = """
    def __neg__(self) -> {tensor}: ...
    def __pos__(self) -> {tensor}: ...
    def __abs__(self) -> {tensor}: ...
    def __invert__(self) -> {tensor}: ...
    def __eq__(self, other: {any}) -> {tensor}: ...  # type: ignore[override]
    def __ne__(self, other: {any}) -> {tensor}: ...  # type: ignore[override]
    def __getitem__(self, index: {any}) -> {tensor}: ...
    def __setitem__(self, index: {any}, value: {any}) -> None: ...
"""


def tensor_stub() -> str:
    """The stub of what Tensor has beside what its class says."""
    names, sample = Names(), resilin.zeros(1, 1)
    known = {"tensor": names.alias(TENSOR, "Tensor"), "any": names.alias("typing", "Any")}
    lines = [f"    def __{name}__(self, other: {known['any']}) -> {known['tensor']}: ..." for name in _OPERATORS]
    lines += _OTHERS.format(**known).strip("\n").split("\n")
    for name, value in sorted(vars(resilin.Tensor).items()):
        if name.startswith("_") or name in signatures.attributes(TENSOR, "Tensor"):
            continue
        if isinstance(value, property):
            lines += _property(name, value, sample, names)
        else:
            lines.append(f"    def {name}{signature(value, 'self', names)}: ...")
    about = '    """What Tensor inherits in the eyes of a type checker."""\n'
    return stub("Tensor's methods and operators", [*names.imports(), "", "class Operators:", about, *lines])


def _property(name: str, value: property, sample: resilin.Tensor, names: Names) -> Iterator[str]:
    getter = signatures.unwrapped(value.fget)
    kind = signatures.returns(getter, names) if signatures.source(getter) else _kind(getattr(sample, name), names)
    yield "    @property"
    yield f"    def {name}(self) -> {kind}: ..."
    if value.fset is not None:
        yield f"    @{name}.setter"
        yield f"    def {name}(self, value: {names.alias('typing', 'Any')}) -> None: ..."


# -- the command line


def stub(about: str, lines: list[str]) -> str:
    """The text of a stub file."""
    return f'"""{about}. {WRITTEN}"""\n\n' + "".join(f"{line}\n" for line in lines)


def stale() -> list[Path]:
    """The files that are not what `files` says, and stubs that it does not say."""
    wanted = files()
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    return changed + [path for path in STUBS.rglob("*.pyi") if path not in wanted]


def main(argv: list[str]) -> int:
    """Run the command line."""
    found = stale()
    if argv == ["--write"]:
        wanted = files()
        for path in found:
            if path in wanted:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(wanted[path])
            else:
                path.unlink()
    for path in found:
        print(path.relative_to(ROOT))
    return 0 if argv == ["--write"] else int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
