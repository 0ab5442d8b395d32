"""The page in a real browser: it draws, sorts, opens files, keeps hostile names as text, and asks nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import viewed_traces
from viewed_traces import HOSTILE, LONG, span

from resilin.launcher import main
from resilin.profiler.view.editor import Editor

pytestmark = pytest.mark.multiproc

COLORS = """() => {
  const canvas = document.querySelector("%s");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let at = 0; at < pixels.length; at += 4) {
    if (pixels[at + 3]) found.add((pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2]);
  }
  return found.size;
}"""


@pytest.fixture
def device(tmp_path):
    """A trace with kernels of a device, whose functions are in a file that is there."""
    (tmp_path / "train.py").write_text("step\n")
    events = [
        span("train.py(3): step", 0, 900, "python_function"),
        span("aten::mm", 10, 60, **{"Input Dims": [[2, 3], [3, 4]]}),
        span("aten::add", 70, 200),
        span(
            "gemm", 100, 300, "kernel", 7, **{"blocks per SM": 0.5, "est. achieved occupancy %": 40, "grid": [8, 1, 1]}
        ),
        span("ncclDevKernel_AllReduce", 200, 500, "kernel", 8, **{"est. achieved occupancy %": 10}),
        span("Memcpy HtoD", 600, 700, "gpu_memcpy", 7, bytes=1 << 20, **{"memory bandwidth (GB/s)": 10.5}),
    ]
    return viewed_traces.write(tmp_path / "rank0.json", events)


def test_all_tabs_of_a_real_job_show_what_its_ranks_did(two_ranks, served, opened):
    with served(two_ranks, [two_ranks.parent]) as server:
        one = opened(server.url)
        assert "rank 1" in one.page.locator("#tab-Overview .bars").first.inner_text()
        assert {"rank 0, all steps", "step 2, all ranks"} <= set(one.page.locator("select option").all_inner_texts())
        one.tab("Operators")
        names = {row[0] for row in one.rows("Operators")}
        assert {"aten::linear", "AddmmBackward0", "Optimizer.step#AdamW.step", "cpu:all_reduce"} <= names
        one.tab("Kernels")
        assert "No kernels" in one.page.locator("#tab-Kernels").inner_text()
        one.tab("Memory")
        owners = one.page.locator("#tab-Memory .legend").inner_text()
        assert all(name in owners for name in ("parameter", "optimizer state", "activation"))
        assert one.page.evaluate(COLORS % "#tab-Memory canvas") > 4
        assert any(re.match(r"train\.py:\d+$", row[3]) for row in one.rows("Memory"))
        one.tab("Timeline")
        assert one.page.evaluate(COLORS % "#view canvas") > 8


def test_a_table_sorts_by_any_column_in_both_directions(device, served, opened):
    with served(device) as server:
        one = opened(server.url)
        one.tab("Operators")
        heads = one.page.locator("#tab-Operators th")
        assert heads.nth(4).get_attribute("aria-sort") == "descending"  # self time
        assert [row[0] for row in one.rows("Operators")] == ["aten::add", "aten::mm"]
        heads.nth(0).get_by_role("button").click()
        assert [row[0] for row in one.rows("Operators")] == ["aten::add", "aten::mm"]
        heads.nth(0).get_by_role("button").click()
        assert [row[0] for row in one.rows("Operators")] == ["aten::mm", "aten::add"]
        heads.nth(5).get_by_role("button").click()
        assert [row[5] for row in one.rows("Operators")] == ["130", "50"]
        one.page.get_by_role("searchbox").fill("[2, 3]")
        assert [row[0] for row in one.rows("Operators")] == ["aten::mm"]


def test_kernels_have_utilisation_and_occupancy(device, served, opened):
    with served(device) as server:
        one = opened(server.url)
        one.tab("Kernels")
        first = one.page.locator("#tab-Kernels table").first.inner_text()
        # of the 600 us from the first to the last 400 hold a kernel, 100 a copy; occupancy: 200 us at 40, 300 at 10
        assert re.search(r"^0\s+0\s+83.33\s+50\s+22\s+2\s+1$", first, re.M), first
        rows = {row[1]: row for row in one.rows("Kernels")}
        assert rows["gemm"][7:10] == ["50", "40", "[8, 1, 1]"]
        assert rows["Memcpy HtoD"][13:] == ["1.00 MB", "10.5"]


def test_the_timeline_zooms_and_moves_and_tells_of_a_span(device, served, opened):
    with served(device) as server:
        one = opened(f"{server.url}#Timeline")
        canvas = one.page.locator("#view canvas")
        whole = canvas.screenshot()
        canvas.focus()
        one.page.keyboard.press("w")
        one.page.wait_for_function(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        )
        assert canvas.screenshot() != whole
        one.page.get_by_role("button", name="all", exact=True).click()
        box = canvas.bounding_box()
        assert box is not None
        # aten::add lies one deep in the first thread of the rank, at 70 to 200 of 900 us
        one.page.mouse.click(box["x"] + 150 + (box["width"] - 150) * 130 / 900, box["y"] + 20 + 22 + 17 + 8)
        assert "aten::add" in one.page.locator("#chosen").inner_text()
        assert "130.0 us from 70.000 us on" in one.page.locator("#chosen").inner_text()
        assert "train.py:3" in one.page.locator("#chosen").inner_text()


def test_a_click_on_a_row_opens_its_file_in_the_user_s_editor(device, served, opened, tmp_path):
    said = tmp_path / "said"
    script = tmp_path / "editor"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{said}.new"\nmv "{said}.new" "{said}"\n')
    script.chmod(0o755)
    with served(device, [tmp_path], Editor(f"{script} -g {{file}}:{{line}}")) as server:
        one = opened(server.url)
        one.tab("Operators")
        with one.page.expect_response(re.compile("/open/")) as answer:
            one.page.get_by_role("cell", name="aten::mm").click()
        assert answer.value.status == 200
        server.editor.wait()
    assert said.read_text().splitlines() == ["-g", f"{tmp_path / 'train.py'}:3"]


def test_without_an_editor_places_are_links_and_of_files_that_are_not_known_text(device, served, opened, tmp_path):
    for sources, link in (([tmp_path], f"vscode://file{tmp_path / 'train.py'}:3"), ([tmp_path / "elsewhere"], None)):
        with served(device, sources) as server:
            one = opened(server.url)
            one.tab("Operators")
            place = one.page.get_by_role("row", name="aten::mm").locator("td").last
            assert place.inner_text() == "train.py:3"
            links = place.locator("a")
            assert ([links.get_attribute("href")] if links.count() else [None]) == [link]


@pytest.mark.parametrize("how", ["served", "exported"])
def test_hostile_names_stay_text(how, served, opened, tmp_path, capsys):
    trace = viewed_traces.hostile(tmp_path / "<img src=x onerror=window.harmed=1>.json")

    def look(one):
        for name in ("Overview", "Operators", "Kernels", "Memory", "Timeline"):
            one.tab(name)
        one.page.locator("#tab-Timeline canvas").hover()
        one.tab("Operators")
        one.page.get_by_label("kind").select_option("*")
        shown = {row[0] for row in one.rows("Operators")}
        assert {name for name in HOSTILE if len(name) < 100 and name.isprintable()} <= shown
        assert f"{LONG[:300]}..." in shown
        assert one.page.evaluate("window.harmed") is None
        strangers = "document.querySelectorAll('img, svg, iframe, object, embed, body [onerror], body [onload]').length"
        assert one.page.evaluate(strangers) == 0
        hrefs = one.page.evaluate("[...document.links].map(link => link.href)")
        assert hrefs == []  # no file of these names is beneath the folder
        assert one.page.title() == trace.name

    if how == "served":
        with served(trace, [tmp_path]) as server:
            look(opened(server.url))
    else:
        out = tmp_path / "report.html"
        assert main.main(["trace", "view", str(trace), "--export", str(out), "--source", str(tmp_path)]) == 0
        assert "for any browser" in capsys.readouterr().out
        look(opened(out.as_uri()))


def test_an_exported_report_opens_without_a_server(two_ranks, opened, tmp_path):
    out = tmp_path / "report.html"
    assert main.main(["trace", "view", str(two_ranks), "--export", str(out)]) == 0
    one = opened(out.as_uri())
    one.tab("Operators")
    assert "aten::linear" in {row[0] for row in one.rows("Operators")}
    one.tab("Timeline")
    assert one.page.evaluate(COLORS % "#view canvas") > 8
    assert [Path(url).name.partition("#")[0] for url in one.asked if not url.startswith("data:")] == ["report.html"]


def test_a_page_of_another_site_gets_nothing(device, served, browser, tmp_path):
    with served(device, [tmp_path], Editor("true {file}")) as server:
        page = browser.new_page()
        page.goto("about:blank")
        got = page.evaluate(
            "url => fetch(url).then(answer => answer.text(), error => String(error))",
            f"http://127.0.0.1:{server.server_port}/",
        )
        assert got == "TypeError: Failed to fetch"
        page.close()
