"""What every way of moving bytes must do: one suite for shared memory, sockets, threads and processes.

A case is a function of (rank, size) that calls `resilin.distributed` on the default group and asserts.
`GroupConformance` runs each case through the `run` fixture, which a test class provides:

    class TestSharedMemory(GroupConformance):
        @pytest.fixture
        def run(self):
            return lambda size, case: run_ranks(size, case, size, transport="shm", abort=False).results()

`CASES` names them all, for runners that start real processes once and call them in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilin.testing.check_group import (  # noqa: F401 - they register their cases
    agreement,
    coalescing,
    groups,
    messages,
    mistakes,
    moving,
    objects,
    reductions,
)
from resilin.testing.check_group.cases import CASES, Case, case

__all__ = ["CASES", "Case", "GroupConformance", "case"]


class GroupConformance:
    """Subclass it in a test file and provide the fixture `run(size, case)`, which runs a case on `size` ranks."""

    sizes: tuple[int, ...] = (1, 2, 3)

    @pytest.mark.parametrize("name", list(CASES))
    def test_case(self, run: Callable[[int, Case], Any], name: str) -> None:
        """Every rank passes the case, at every size."""
        for size in self.sizes:
            run(size, CASES[name])
