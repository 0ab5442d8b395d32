"""Ends the workers with the tests."""

from collections.abc import Iterator

import pytest
import rpc_workers


@pytest.fixture(scope="session", autouse=True)
def workers() -> Iterator[None]:
    yield
    rpc_workers.close_pool()
