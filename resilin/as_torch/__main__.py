"""Run a PyTorch program on resilin, as `python` would run it.

python -m resilin.as_torch SCRIPT ARGS
python -m resilin.as_torch -m MODULE ARGS
python -m resilin.as_torch -c CODE ARGS
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from resilin.as_torch import install
from resilin.errors import UsageError


def main(argv: Sequence[str]) -> None:
    """Run what `argv` names, with the rest as its arguments."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__.strip())
        sys.exit(0 if argv else 2)
    first, *rest = argv
    if first in ("-m", "-c") and not rest:
        raise UsageError(f"as_torch: {first} needs {'a module' if first == '-m' else 'code'}")
    install()
    if first == "-m":
        sys.argv = rest
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        if not os.path.exists(first):
            raise UsageError(f"as_torch: script {first!r} does not exist (in {os.getcwd()})")
        sys.argv = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"python -m resilin.as_torch: error: {error}")
