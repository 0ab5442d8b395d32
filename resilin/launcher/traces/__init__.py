"""`resilin trace WORD`: the traces of all ranks. A word is a file of its own; without one it is the flight recorder."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from resilin.launcher.traces import analyse, merge, record, view, why

COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int], str]] = {
    "trace record": (record.add_arguments, record.run, "run a program whose processes record what they do"),
    "trace merge": (merge.add_arguments, merge.run, "make one file of the traces of all ranks, with one clock"),
    "trace analyse": (analyse.add_arguments, analyse.run, "say where the time of each rank went"),
    "trace view": (view.add_arguments, view.run, "show the traces of all ranks as a page in the browser"),
    "trace why": (why.add_arguments, why.run, "name the rank and operation that made the others wait"),
}


def joined(words: Sequence[str]) -> list[str]:
    """Return the command line with `trace WORD` as one word: a folder of that name is written ./WORD."""
    together = " ".join(words[:2])
    return [together, *words[2:]] if together in COMMANDS else list(words)
