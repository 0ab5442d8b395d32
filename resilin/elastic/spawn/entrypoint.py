"""Run a worker of `launcher.api.elastic_launch`: `python -m resilin.elastic.spawn.entrypoint FOLDER` calls it.

FOLDER/call.pickle holds what `multiprocessing` tells a spawned process about its parent's main module, and the function
with its arguments; what it returns goes to FOLDER/result_<rank>.pickle. Both are written by processes of one user, in
a folder that is theirs alone.
"""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing import spawn
from pathlib import Path

from resilin._base import env, excepthook

CALL = "call.pickle"


def result_file(folder: Path, rank: int | str) -> Path:
    """Return where the result of `rank` is."""
    return folder / f"result_{rank}.pickle"


def main() -> None:
    """Entry point."""
    excepthook.watch()
    folder = Path(sys.argv[1])
    with (folder / CALL).open("rb") as file:
        spawn.prepare(pickle.load(file))  # first: what it makes importable, the function may need
        fn, args = pickle.load(file)
    path = result_file(folder, env.require("RANK", "a worker of elastic_launch is started by elastic-run"))
    value = fn(*args)
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_bytes(pickle.dumps(value))
    scratch.replace(path)


if __name__ == "__main__":
    main()
