"""An interrupt on one rank in the middle of what all do together: the others hear at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from divided import divided, train

from resilin.errors import GroupAborted
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer, state

MIDDLES: dict[str, tuple[Any, str, Callable[[ZeroRedundancyOptimizer], object], str]] = {
    "step": (ZeroRedundancyOptimizer, "_update_own", lambda optimizer: optimizer.step(), "own part of the update"),
    "consolidate_state_dict": (
        state,
        "_collect",
        lambda optimizer: optimizer.consolidate_state_dict(),
        "left consolidate_state_dict half-way",
    ),
}


@pytest.mark.parametrize("what", MIDDLES)
def test_an_interrupt_on_one_rank_is_told_to_the_others(what: str) -> None:
    owner, name, call, told = MIDDLES[what]
    usual, heard, ranks = getattr(owner, name), threading.Event(), threading.local()

    def interrupted(*given: Any, **more: Any) -> Any:
        if getattr(ranks, "rank", None) == 1:
            raise KeyboardInterrupt
        return usual(*given, **more)

    def work(rank: int) -> None:
        params, optimizer = divided("Adam")
        train(params, optimizer, range(1))
        ranks.rank = rank
        if rank == 1:  # rank 0 collects
            with pytest.raises(KeyboardInterrupt):
                call(optimizer)
            assert heard.wait(PATIENCE_S)  # its own end would tell them, too
            return
        with pytest.raises(GroupAborted, match=f"rank 1 aborted the group: KeyboardInterrupt: .*{told}"):
            call(optimizer)
        heard.set()

    with mock.patch.object(owner, name, interrupted):
        run_ranks(2, work, abort=False).results()
