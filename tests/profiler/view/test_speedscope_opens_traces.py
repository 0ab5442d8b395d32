"""speedscope, a viewer of others, opens our traces and finds nothing wrong with how their spans nest."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path

import pytest

from resilin._base import env
from resilin.launcher import main

VARIABLE = "RESILIN_SPEEDSCOPE"
MISSING = f"no speedscope is there: `npm pack speedscope@1.25.0`, unpack it, and {VARIABLE}=FOLDER of its package.json"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        """Say nothing: tests look at what the page shows."""


@pytest.fixture
def speedscope(tmp_path):
    """The address of speedscope's page; what is put into the folder `tmp_path` is there beside it."""
    folder = env.get(VARIABLE)
    if folder is None:
        pytest.skip(MISSING)
    for file in (Path(folder) / "dist" / "release").iterdir():
        (tmp_path / file.name).symlink_to(file)
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.deep
@pytest.mark.parametrize("merged", [False, True], ids=["rank", "merged"])
def test_speedscope_opens_them(two_ranks, browser, speedscope, tmp_path, merged):
    if merged:
        assert main.main(["trace", "merge", str(two_ranks), "-o", str(tmp_path / "ours.json")]) == 0
    else:
        (tmp_path / "ours.json").symlink_to(next(two_ranks.iterdir()))
    page = browser.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{speedscope}/index.html#profileURL={speedscope}/ours.json&title=ours")
    page.get_by_text("Sandwich").click()
    page.get_by_text("Symbol Name").wait_for()
    shown = page.inner_text("body")
    page.close()
    assert "train.py(9): train" in shown
    assert [text for text in said if "Tried to end" in text or "Failed" in text or "still open" in text] == []
