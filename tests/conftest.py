"""Fixtures that several folders use."""

import logging
import signal
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings

from resilin.testing.hosts import Host, NotPermitted, two_hosts

settings.register_profile("resilin", deadline=None)  # a busy machine is not a counterexample
settings.load_profile("resilin")


def pytest_configure() -> None:
    """A shell starts what runs in its background (`make test &`) with Ctrl-C ignored, and tests inherit that."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that a test runs in this process sets up logging for itself: undone, as its end would."""
    logger = logging.getLogger("resilin")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


@pytest.fixture
def hosts() -> Iterator[Sequence[Host]]:
    """Two hosts with a link; the test is skipped where namespaces are not permitted."""
    try:
        with two_hosts() as pair:
            yield pair
    except NotPermitted as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")
