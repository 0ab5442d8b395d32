"""Train elastically: membership, agents and generations on one side, `@elastic.run` and `elastic.State` on the other.

Names load on first use: the agent side (membership, rendezvous, agent, supervise, failure, control) must not pull in
numpy, which the worker side needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from resilin._base import lazy

if TYPE_CHECKING:
    from resilin.data import ElasticSampler as ElasticSampler
    from resilin.elastic.worker.error_record import record as record
    from resilin.elastic.worker.feed import steps as steps
    from resilin.elastic.worker.loop import run as run
    from resilin.elastic.worker.session import World as World
    from resilin.elastic.worker.session import is_elastic as is_elastic
    from resilin.elastic.worker.session import long_pause as long_pause
    from resilin.elastic.worker.session import world as world
    from resilin.elastic.worker.state import State as State

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.distributed.elastic import multiprocessing as multiprocessing

# public name -> module that defines it; no module may bear a public name (it would shadow it once imported)
_WHERE = {
    "ElasticSampler": "resilin.data",
    "State": "resilin.elastic.worker.state",
    "World": "resilin.elastic.worker.session",
    "is_elastic": "resilin.elastic.worker.session",
    "long_pause": "resilin.elastic.worker.session",
    "record": "resilin.elastic.worker.error_record",
    "run": "resilin.elastic.worker.loop",
    "steps": "resilin.elastic.worker.feed",
    "world": "resilin.elastic.worker.session",
}

__all__ = ["ElasticSampler", "State", "World", "is_elastic", "long_pause", "record", "run", "steps", "world"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with lazy.lock:
        value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
