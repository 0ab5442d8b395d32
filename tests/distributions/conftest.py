"""float64 for all tests of distributions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import resilin


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = resilin.get_default_dtype()
    resilin.set_default_dtype(resilin.float64)
    yield
    resilin.set_default_dtype(before)
