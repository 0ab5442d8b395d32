"""Count rounds of `init_rpc` of static worlds where they meet: in the store, as processes may have had unlike many.

    rpc_rounds/GENERATION          how many rounds of this generation of the job are over, at least
    rpc_prefix_GENERATION_N/...    the keys of round N
    rpc_prefix_GENERATION_N/over   it is: a worker has left it by `shutdown`, or all were refused

Until a round is over whoever comes takes part in it: all its workers at first, one that gave up and tries again, and a
process in the place of one that was killed.
"""

from __future__ import annotations

from resilin.distributed.stores import PrefixStore, Store

_OVER = "over"


def present(store: Store, generation: str) -> Store:
    """Return the part of `store` that the present round has."""
    counter = f"rpc_rounds/{generation}"
    number = int(store.compare_set(counter, "", "0"))
    while True:
        found = PrefixStore(f"rpc_prefix_{generation}_{number}", store)
        if not found.check([_OVER]):
            return found
        store.compare_set(counter, str(number), str(number + 1))
        number += 1


def end(store: Store) -> None:
    """Note that the round which has `store` is over."""
    store.set(_OVER, "1")
