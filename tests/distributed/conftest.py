"""Fixtures of the groups' tests."""

import pytest
from company import Company


@pytest.fixture
def company():
    made = []

    def make(transport, count, **options):
        made.append(Company(transport, count, **options))
        return made[-1]

    yield make
    while made:  # nothing holds them afterwards: see `collected`
        made.pop().close()
