"""A job of real ranks, and traces made by hand: see trace_jobs.py."""

from __future__ import annotations

import pytest
from trace_jobs import DELAYS, Made, run_job


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """A job of real ranks, run once for all tests of it."""
    return run_job(tmp_path_factory.mktemp("job"), DELAYS)


@pytest.fixture
def made():
    """Makes traces by hand: made(rank).span(...).collective(...).ready()."""
    return Made
