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
    for each in made:
        each.close()
