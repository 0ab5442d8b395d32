"""Named moments of a worker's step, announced to whoever injects faults there (`elastic.chaos`). Free when nobody does.

    backward     a node of the graph is about to run
    optimizer    a group of parameters is about to be written, or has been
    buddy        a slice is about to go to the rank that keeps a second copy, and a piece of it has gone
    gather       ranges that ranks have updated are about to be gathered, and have been; where they stay divided, all
                 ranks are about to hear that every one of them has a second copy, and have heard
    commit       a step has been applied and is about to be committed
    ledger       its line is about to be written
    saving       a file is about to be written, and a piece of it has been
    state        state is being handed over to a rank that lacks it
    pipeline     an action of a pipeline's plan is about to run

Collectives, and the making of groups, announce themselves in finer steps (`distributed.wire.call_phases`).
"""

from __future__ import annotations

from collections.abc import Callable

NAMES = ("backward", "optimizer", "buddy", "gather", "commit", "ledger", "saving", "state", "pipeline")

heard: Callable[[str], None] | None = None
"""Who is told, from any thread; what it raises comes out of the work that announces."""


def reached(name: str) -> None:
    """This process's work has come to `name`."""
    if heard is not None:
        heard(name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Tell `listener`, or nobody any more."""
    global heard
    heard = listener
