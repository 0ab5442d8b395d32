"""Fixtures that several folders use."""

from collections.abc import Iterator, Sequence

import pytest

from resilin.testing.hosts import Host, NotPermitted, two_hosts


@pytest.fixture
def hosts() -> Iterator[Sequence[Host]]:
    """Two hosts with a link; the test is skipped where namespaces are not permitted."""
    try:
        with two_hosts() as pair:
            yield pair
    except NotPermitted as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")
