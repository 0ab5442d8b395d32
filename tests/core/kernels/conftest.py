"""Inputs for kernel tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Maker = Callable[..., Any]


@pytest.fixture
def rand() -> Maker:
    """rand(*shape): standard normal float32, the same for each test."""
    generator = np.random.default_rng(7)
    return lambda *shape: generator.standard_normal(shape).astype(np.float32)
