"""Where the commands start. It imports next to nothing: Ctrl-C while they import the rest is no traceback."""

from __future__ import annotations

import importlib
import sys

_INTERRUPTED = 130  # 128 + SIGINT


def elastic_run() -> int:
    """`elastic-run`; returns its exit code."""
    return _main("resilin.launcher.elastic_run")


def resilin() -> int:
    """`resilin`; returns its exit code."""
    return _main("resilin.launcher.main")


def _main(module: str) -> int:
    try:
        return int(importlib.import_module(module).main())
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(elastic_run())
