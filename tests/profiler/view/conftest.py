"""A browser, and pages that it opens, of which nothing may go wrong unseen."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import chromium
import pytest
import viewed_traces
from playwright.sync_api import Browser, Page, sync_playwright

from resilin.profiler.view import viewing
from resilin.profiler.view.report import Opens
from resilin.testing.patience import PATIENCE_S

MOST_BYTES = 64 << 20


@pytest.fixture(scope="module")  # not longer: while it is there, no other test can run an event loop in this thread
def browser() -> Iterator[Browser]:
    """Chromium, started once; the test is skipped where there is none."""
    program = chromium.found()
    if program is None:
        pytest.skip(chromium.MISSING)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=chromium.FLAGS)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and what it did."""

    page: Page
    said: list[str] = field(default_factory=list)
    """Errors and warnings of its console, and errors of its scripts."""
    asked: list[str] = field(default_factory=list)
    """What it requested."""

    def tab(self, name: str) -> None:
        """Show a tab."""
        self.page.get_by_role("tab", name=name, exact=True).click()

    def rows(self, tab: str) -> list[list[str]]:
        """The cells of a tab's last table."""
        found = self.page.evaluate(
            "id => [...[...document.querySelectorAll(`#${id} table`)].at(-1).tBodies[0].rows]"
            ".map(row => [...row.cells].map(cell => cell.textContent))",
            f"tab-{tab}",
        )
        assert isinstance(found, list)
        return found


@pytest.fixture
def opened(browser: Browser):
    """opened(url): the page there, once it shows its tabs. At the end it has said nothing, and asked nobody else."""
    pages: list[Opened] = []

    def open_at(url: str) -> Opened:
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.set_default_timeout(PATIENCE_S * 1000)
        one = Opened(page)
        pages.append(one)
        page.on("console", lambda message: message.type in ("error", "warning") and one.said.append(message.text))
        page.on("pageerror", lambda error: one.said.append(str(error)))
        page.on("request", lambda request: one.asked.append(request.url))
        page.goto(url)
        page.get_by_role("tab", name="Overview").wait_for()
        return one

    yield open_at
    for one in pages:
        own = urlsplit(one.page.url)
        assert one.said == []
        assert [url for url in one.asked if urlsplit(url)[:2] != own[:2] and not url.startswith("data:")] == []
        one.page.close()


@contextlib.contextmanager
def serving(place: Path, sources=(), editor=None):
    """The server of a report while the block runs."""
    opens = Opens.EDITOR if editor else Opens.LINK
    made = viewing.read([str(place)], list(sources), MOST_BYTES, opens)
    with viewing.listen(0, editor) as server:
        server.show(made.data, made.places)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def served():
    """served(traces, sources, editor): a block in which a server shows them."""
    return serving


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory) -> Path:
    """The folder with the traces of a real job of two ranks; beside it is `train.py`."""
    return viewed_traces.two_ranks(tmp_path_factory.mktemp("two"))
