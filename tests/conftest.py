"""Fixtures that several folders use."""

import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import extent
import other_user as others
import pytest
from hypothesis import settings

from resilin.testing.hosts import Host, NotPermitted, two_hosts

HYPOTHESIS_EXAMPLES = 100  # where a test names no number


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deep", metavar="all|commit|PART/PARTS", help="run what is long by nature: see tests/extent.py")
    parser.addoption("--slow", metavar="all|commit|PART/PARTS", default="all", help="what is slow of the short run")


def pytest_configure(config: pytest.Config) -> None:
    word = config.getoption("--deep")
    extent.chosen = extent.choose(word) if word else None
    extent.share = extent.choose_share(config.getoption("--slow"))
    # a busy machine is not a counterexample
    settings.register_profile("resilin", deadline=None, max_examples=extent.examples(HYPOTHESIS_EXAMPLES))
    settings.load_profile("resilin")
    # A shell starts what runs in its background (`make test &`) with Ctrl-C ignored, and tests inherit that.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_report_header() -> str:
    return f"resilin: {extent.chosen or extent.share}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what was collected out of every garbage collection: it lives to the end, and is more than all else."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what belongs to this run."""
    left = [item for item in items if not extent.belongs(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if extent.belongs(item)]


@pytest.fixture
def turns() -> Callable[..., int]:
    """`turns(short=50, full=5_000)`: a number of turns, for a test that is in the short run and in the long one."""
    return extent.turns


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
def other_user() -> others.OtherUser:
    """Another user of this machine, who can run programs; the test is skipped where nobody can become him."""
    if os.geteuid() != 0:
        pytest.skip(others.WHY_NOT)
    return others.OtherUser()


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder like /tmp, in which each user makes names; pytest's own let no other user in."""
    folder = Path(tempfile.mkdtemp(prefix="resilin-common-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def hosts() -> Iterator[Sequence[Host]]:
    """Two hosts with a link; the test is skipped where namespaces are not permitted."""
    try:
        with two_hosts() as pair:
            yield pair
    except NotPermitted as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")
