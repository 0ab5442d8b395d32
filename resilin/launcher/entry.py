"""Where the commands start. It imports next to nothing: Ctrl-C while they import the rest is no traceback."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

_INTERRUPTED = 130  # 128 + SIGINT
_NO_READER = 141  # 128 + SIGPIPE, as programs end that do not handle it


def elastic_run() -> int:
    """`elastic-run`; ends this process with its exit code. In a copy that became a worker it returns or raises."""
    own = os.getpid()
    code = _main("resilin.launcher.elastic_run")
    if os.getpid() == own:
        _leave(code)
    return code


def main(args: list[str] | None = None) -> None:
    """Run `elastic-run` with `args` (None: the process's own) from a program, as `torch.distributed.run.main` does.

    Returns when the job has ended well; SystemExit with the exit code otherwise. To be called in the main thread.
    """
    code = importlib.import_module("resilin.launcher.elastic_run").main(args)
    if code:
        raise SystemExit(code)


def resilin() -> int:
    """`resilin`; returns its exit code."""
    return _main("resilin.launcher.main")


def _main(module: str) -> int:
    own = os.getpid()
    try:
        try:
            gc.disable()  # what is imported stays: to look for garbage in it takes a fifth of the time
            main = importlib.import_module(module).main
            gc.enable()
            return int(main())
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        if os.getpid() != own:
            raise
        return _INTERRUPTED
    except BrokenPipeError:  # who read the output has gone, as `| head` does: nobody is to be told
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # what is left in their buffers is written at the interpreter's end
            os.dup2(nowhere, stream)
        return _NO_READER


def _leave(code: int) -> None:
    """End this process without the interpreter's own end, which takes 20 ms: everything here was ended by its owner."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: told by the exit code
                stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(elastic_run())
