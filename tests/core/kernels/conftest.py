"""Inputs for kernel tests, and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from resilin.core.machine import threads

Maker = Callable[..., Any]


@pytest.fixture
def rand() -> Maker:
    """rand(*shape): standard normal float32, the same for each test."""
    generator = np.random.default_rng(7)
    return lambda *shape: generator.standard_normal(shape).astype(np.float32)


@pytest.fixture
def thread_counts() -> Iterator[Callable[[int], None]]:
    """Set how many threads there are; afterwards there are as many as before."""
    before = threads.get_num_threads()
    yield threads.set_num_threads
    threads.set_num_threads(before)
