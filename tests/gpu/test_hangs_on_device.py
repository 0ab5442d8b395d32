"""A rank that does not come to a collective of a device's tensors is named, on both backends of devices."""

from __future__ import annotations

from pathlib import Path

import extent
import pytest
from standin_device import cuda
from standin_groups import BACKENDS

from resilin.elastic.hangs.step_time import FLOOR_S, StepTime
from resilin.testing import hangs
from resilin.testing.faults import FaultPlan
from resilin.testing.hangs import COLLECTIVES, HUNG, LIMIT_S, Named

SIZE = 3


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend string of a group, with stand-ins for what it needs."""
    return BACKENDS[request.param](monkeypatch)


def is_named(found: Named, what: str) -> bool:
    return found.verdict.ranks == (HUNG,) and f"in {what} " in found.verdict.reason


def test_the_rank_that_is_missing_from_a_collective_is_named(tmp_path: Path, backend: str) -> None:
    found = hangs.hangs(tmp_path, SIZE, COLLECTIVES, make=cuda, backend=backend)
    assert not {name: one for name, one in found.items() if not is_named(one, name)}
    assert all(LIMIT_S <= one.silent_s < 8.0 for one in found.values())


@pytest.mark.parametrize("name", ["barrier", "all_reduce", "tree_all_reduce"])
def test_a_rank_that_hangs_inside_a_collective_before_it_tells_the_others_is_named(
    tmp_path: Path, backend: str, name: str
) -> None:
    """As where its device never comes to an end, while it copies for the host."""
    frozen = FaultPlan().freeze(HUNG, name, call=int(name == "barrier"))  # one barrier there is before it
    found = hangs.hang(tmp_path, SIZE, COLLECTIVES[name], make=cuda, backend=backend, comes=frozen)
    assert frozen.all_fired()
    assert is_named(found, name), found


@pytest.mark.parametrize("backend", extent.short(BACKENDS, of=["nccl"]), indirect=True)
def test_at_the_limit_that_real_jobs_have_it_takes_less_than_eight_seconds(tmp_path: Path, backend: str) -> None:
    found = hangs.hang(tmp_path, SIZE, COLLECTIVES["tree_all_reduce"], make=cuda, backend=backend, pace=StepTime())
    assert is_named(found, "tree_all_reduce"), found
    assert FLOOR_S <= found.silent_s < 8.0
