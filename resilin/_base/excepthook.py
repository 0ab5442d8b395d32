"""Leaves the exception that ends this process where its agent finds it: in the file named by TORCHELASTIC_ERROR_FILE.

What a function under `@elastic.run` raises reaches the agent as a message; this is for what comes before and after it,
and for programs without it: `import resilin` watches in every worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

from resilin._base import env, private_files, stacks
from resilin._base.clock import SYSTEM

_MAX_TEXT_CHARS = 20_000
_watching = False  # once per process


def watch_worker() -> None:
    """`watch()`, if this process is a worker itself and not one that a worker has started: it leads its session."""
    if os.getsid(0) == os.getpid():
        watch()


def watch() -> None:
    """From now on an exception that nobody catches is written down, before it is shown as it was without.

    And the agent can ask where the threads are (`stacks`).
    """
    global _watching
    path = env.get("TORCHELASTIC_ERROR_FILE")
    if not path or _watching:
        return
    _watching = True
    stacks.watch(Path(path).parent)
    shown_by, own = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == own:  # a forked child may fail and the worker go on
            with contextlib.suppress(Exception):  # whatever is wrong with the folder or the exception, it must be shown
                write(Path(path), error)
        shown_by(kind, error, trace)

    sys.excepthook = hook


def write(path: Path, error: BaseException) -> None:
    """Write `error` to `path` in torch's format, unless the program has written there itself."""
    stack = "".join(traceback.format_exception(error))[-_MAX_TEXT_CHARS:]
    # the last line of what tracebacks show has a text, too, of an exception that cannot make its own
    text = "".join(traceback.format_exception_only(error)).strip().removeprefix(f"{type(error).__module__}.")
    if isinstance(error, SyntaxError):  # that shows the place first
        text = f"{type(error).__name__}: {error}"
    message = text[:_MAX_TEXT_CHARS]
    extra = {"py_callstack": stack, "timestamp": str(int(SYSTEM.wall()))}
    with open(private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
        json.dump({"message": {"message": message, "extraInfo": extra}}, file)
