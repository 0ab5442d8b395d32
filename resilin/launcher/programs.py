"""Which command the workers run, as far as files tell that it can run. Imports nothing of the program.

A script or module whose text imports resilin is run in processes in which that is done already, from the first start on
(`elastic/spawn/fork_server.py`). `--start-method spawn` has it executed afresh; so has a text that changes `os.environ`
before it imports resilin: libraries read their variables once, when they are imported.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from resilin._base import env
from resilin.elastic.spawn.program import Program
from resilin.errors import UsageError
from resilin.launcher import cwd

_AS_TORCH = "resilin.as_torch"
_MAX_TEXT_BYTES = 1 << 20
_IMPORTS_US = re.compile(rb"^[ \t]*(?:import|from)[ \t]+resilin\b", re.MULTILINE)
_LOADS_ANYTHING = {"importlib", "pickle", "runpy"}
_LISTEN_NOWHERE = {"resilin", "numpy", "scipy", "ml_dtypes", "cupy", "safetensors", "tqdm"}
_READ_BYTES = 64 << 10  # of a program: parsing more would delay its start
_SETS_VARIABLES = re.compile(
    rb"\benviron\s*(?:\[[^\]]*\]\s*\|?=(?!=)|\|=|\.(?:setdefault|update|pop|clear)\()"
    rb"|\bdel[ \t]+(?:os\.)?environ\b|\b(?:put|unset)env\("
)


def of(args: argparse.Namespace) -> Program:
    """The program that PROGRAM, --module and --no-python stand for. UsageError when it cannot be run."""
    name, rest = args.training_script, tuple(args.training_script_args)
    if args.no_python:
        if args.module:
            raise UsageError("--no-python and --module exclude each other")
        if args.as_torch:
            raise UsageError("--no-python and --as-torch exclude each other")
        _check_command(name)
        return Program(command=(name, *rest), argv=(name, *rest), warm=False)
    interpreter = env.get("PYTHON_EXEC") or sys.executable
    cwd.absolute(os.curdir if args.module else name, f"module {name} in" if args.module else "script")
    if args.module:
        source = _check_module(name) if interpreter == sys.executable else None  # what it can import, it alone knows
        head: tuple[str, ...] = ("-m", name)
        text, is_source = _text(source), True
    else:
        _check_script(name)
        text, head = _text(name), (name,)
        is_source = bool(text) and b"\0" not in text  # no folder, archive or bytecode
    if interpreter == sys.executable and b"\0" not in text and len(text) < _MAX_TEXT_BYTES:
        _check_syntax(text, source if args.module else name)
    imports_us = _IMPORTS_US.search(text)
    before = text[: imports_us.start()] if imports_us is not None else text
    warm = is_source and args.start_method != "spawn" and _SETS_VARIABLES.search(before) is None
    early = warm and interpreter == sys.executable and (imports_us is not None or args.as_torch)
    ours = is_source and (imports_us is not None or args.as_torch) and _is_ours(text, as_torch=args.as_torch)
    if args.as_torch:  # a module of ours runs it
        argv = (_AS_TORCH, *head, *rest)
        command: tuple[str, ...] = (interpreter, "-u", "-m", *argv)
        return Program(command=command, argv=argv, module=True, warm=warm, early=early, ours=ours)
    command = (interpreter, "-u", *head, *rest)
    return Program(command=command, argv=(name, *rest), module=args.module, warm=warm, early=early, ours=ours)


def _is_ours(text: bytes, *, as_torch: bool) -> bool:
    """Whether a program imports nothing that might listen on MASTER_PORT, and does not name that port itself."""
    if len(text) > _READ_BYTES or b"MASTER_PORT" in text:
        return False
    known = (_LISTEN_NOWHERE | sys.stdlib_module_names | ({"torch"} if as_torch else set())) - _LOADS_ANYTHING
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # of another interpreter's language
        return False
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["" if node.level else node.module or ""]
        if not known.issuperset(name.partition(".")[0] for name in names):
            return False
    return True


def _text(path: str | None) -> bytes:
    """The beginning of a file; nothing of one that cannot be read."""
    try:
        with open(path or os.devnull, "rb") as file:
            return file.read(_MAX_TEXT_BYTES)
    except OSError:
        return b""


def _check_syntax(text: bytes, path: str | None) -> None:
    """UsageError for a source file that no worker could run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each worker shows its own
            compile(text, path or "", "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise UsageError(f"program {path!r} cannot run: {type(error).__name__}: {error}{line}") from None


def _check_command(name: str) -> None:
    folders = [""] if "/" in name else os.get_exec_path()
    paths = [os.path.join(folder, name) for folder in folders]
    if not any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths):
        raise UsageError(f"command {name!r} does not exist or is not executable")


def _check_script(name: str) -> None:
    if not os.path.exists(name):
        raise UsageError(
            f"script {name!r} does not exist (in {os.getcwd()}); for a module use -m, for a command --no-python"
        )
    if os.path.isdir(name) and PathFinder.find_spec("__main__", [name]) is None:
        raise UsageError(f"script {name!r} is a folder without __main__.py; name a file in it")


def _check_module(name: str) -> str | None:
    """The file of a module, if it has one. Follows `name` through the folders of packages: importlib's own search would
    import the parents."""
    top, *below = name.split(".")
    spec, above = _top(top), top
    if spec is None:
        raise UsageError(f"module {name!r} does not exist: {top!r} is not on the path of {sys.executable}")
    for part in below:
        spec = _below(spec, part)
        if spec is None:
            raise UsageError(f"module {name!r} does not exist: there is no {part!r} in {above!r}")
        above = f"{above}.{part}"
    if spec.submodule_search_locations is not None:
        spec = _below(spec, "__main__")
        if spec is None:
            raise UsageError(f"module {name!r} is a package without __main__.py; name a module in it")
    return spec.origin


def _top(name: str) -> ModuleSpec | None:
    found = PathFinder.find_spec(name, [os.getcwd(), *sys.path])  # `python -m` looks here first
    try:
        # a folder without __init__.py counts only when nothing else has this name
        return found if found and found.origin else importlib.util.find_spec(name) or found
    except ValueError:  # __main__ and the like
        return None


def _below(parent: ModuleSpec, name: str) -> ModuleSpec | None:
    """The module `name` of a package; None when there is none. The package itself, when only running it would tell."""
    if parent.submodule_search_locations is None or not name:
        return None
    found = PathFinder.find_spec(name, list(parent.submodule_search_locations))
    return found or (parent if _sets_its_path(parent) else None)


def _sets_its_path(package: ModuleSpec) -> bool:
    """Whether the code of the package says where its modules are, such as with pkgutil.extend_path."""
    return package.has_location and package.origin is not None and b"__path__" in Path(package.origin).read_bytes()
