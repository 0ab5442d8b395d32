"""Run a PyTorch program on resilin, as `python` would run it.

python -m resilin.as_torch SCRIPT ARGS
python -m resilin.as_torch -m MODULE ARGS
python -m resilin.as_torch -c CODE ARGS
python -m resilin.as_torch - ARGS         (the program comes from standard input)
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType

from resilin.as_torch import install
from resilin.errors import UsageError


def main(argv: Sequence[str]) -> None:
    """Run what `argv` names, with the rest as its arguments."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__.strip())
        sys.exit(0 if argv else 2)
    first, *rest = argv
    try:
        _check(first, rest)
        install()
    except UsageError as error:
        sys.exit(f"python -m resilin.as_torch: error: {error}")
    if first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        _run_text(rest[0], "<string>", ["-c", *rest[1:]])
    elif first == "-":
        _run_text(sys.stdin.read(), "<stdin>", ["-", *rest])
    else:
        sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def _check(first: str, rest: Sequence[str]) -> None:
    if first in ("-m", "-c") and not rest:
        raise UsageError(f"as_torch: {first} needs {'a module' if first == '-m' else 'code'}")
    if not first.startswith("-") and not os.path.exists(first):
        raise UsageError(f"as_torch: script {first!r} does not exist (in {os.getcwd()})")
    if first.startswith("-") and first not in ("-m", "-c", "-"):
        raise UsageError(f"as_torch: option {first!r} is unknown; expected SCRIPT, -m MODULE, -c CODE or -")


def _run_text(text: str, name: str, argv: list[str]) -> None:
    """Run a program that has no file, as the module `__main__`, where pickles of its functions look for them."""
    sys.argv, sys.path[0] = argv, ""
    main_module = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(text, name, "exec", dont_inherit=True), main_module.__dict__)


if __name__ == "__main__":
    main(sys.argv[1:])
