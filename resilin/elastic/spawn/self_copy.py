"""Make a copy of the launcher, in which `spawner.Copied` was raised, a template (`fork_server.py`).

To the programs that are run in processes forked from it, it must look like `python -u`, begun afresh.
"""

from __future__ import annotations

import gc
import importlib
import io
import signal
import sys

from resilin._base import env
from resilin.elastic.spawn import processes, spawner


def run(copied: spawner.Copied) -> None:
    """Be the template; returns or raises in a worker whose program has ended, as that did."""
    request = copied.request
    gc.disable()
    processes.rename(request["argv"])
    env.replace({**request["env"], spawner.ENV_FD: str(copied.control_fd)})
    if not sys.flags.safe_path:
        sys.path.pop(0)  # of the launcher: a folder of scripts, or the one it was started in
    _handle_signals()
    _unbuffer()
    importlib.import_module("resilin.elastic.spawn.fork_server").main()


def _handle_signals() -> None:
    """What an interpreter does at its start; the spawner has set all that it does not leave ignored to the default."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _unbuffer() -> None:
    """Standard output and error as `-u` makes them."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None:
            raw = io.FileIO(fd, "wb", closefd=False)
            raw.name = f"<{name}>"
            text = io.TextIOWrapper(raw, stream.encoding, stream.errors, "\n", write_through=True)
            text.mode = "w"  # type: ignore[misc]  # as an interpreter does
            setattr(sys, name, text)
            setattr(sys, f"__{name}__", text)
