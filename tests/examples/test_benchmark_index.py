"""The index of benchmark results, and README's figures, are those of the result files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import harness, index
from benchmarks.harness import Options, Report, Row

OUT_OF_DATE = "out of date: python -m benchmarks.index"
FILES = [path for path in sorted(index.RESULTS.glob("*.md")) if path.name != "README.md"]


def test_the_index_is_made_from_the_files_that_are_there() -> None:
    assert (index.RESULTS / "README.md").read_text(encoding="utf-8") == index.page(), OUT_OF_DATE


def test_readme_states_the_figures_of_the_files() -> None:
    text = index.README.read_text(encoding="utf-8")
    assert index.with_comparison(text, index.comparison()) == text, OUT_OF_DATE


def test_every_file_is_in_the_index_with_figure_date_and_machine() -> None:
    rows = [line.strip("| ").split(" | ") for line in index.page().splitlines() if line.startswith("| [")]
    assert [row[0] for row in rows] == [f"[{path.stem}]({path.name})" for path in FILES]
    for row in rows:
        assert re.search(r"\d", row[2]), row
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row[5]), row
        assert row[6].endswith(" cores"), row


def test_every_headline_is_of_a_file() -> None:
    assert set(index.HEADLINES) <= {path.stem for path in FILES}


def written(folder: Path, name: str, rows: list[Row], **stamp: str) -> Path:
    machine = {"date": "2026-01-02", "processor": "P", "cores": "2", **stamp}
    path = folder / f"{name}.md"
    path.write_text(harness.render(Report(name=name, question="q", method="m", rows=rows), machine, Options()))
    return path


def test_what_the_harness_writes_is_read_again(tmp_path: Path) -> None:
    written(tmp_path, "a", [Row(what="call", unit="ms", ours=2, peer=5), Row(what="bare", unit="s", ours=1)])
    written(tmp_path, "b", [Row(what="size", unit="MB", ours=3)])
    assert index.page(tmp_path).removeprefix(index.HEAD).splitlines() == [
        "| [a](a.md) | call | 2.00 ms | 5.00 ms (PyTorch) | 2.50 | 2026-01-02 | P, 2 cores |",
        "| [b](b.md) | size | 3.00 MB |  |  | 2026-01-02 | P, 2 cores |",
    ]


def test_the_stamp_has_the_date() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", harness.machine(None)["date"])


def test_what_is_missing_is_named_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "a", [Row(what="call", unit="ms", ours=2)], date="yesterday")
    with pytest.raises(index.ResultsError, match=r"a\.md: no \| date \| YYYY-MM-DD \|"):
        index.page(tmp_path)
    path.write_text("# a\n")
    with pytest.raises(index.ResultsError, match=r"a\.md: no table that begins with"):
        index.page(tmp_path)
    written(tmp_path, "a", [Row(what="call", unit="ms", ours=2)])
    monkeypatch.setitem(index.HEADLINES, "a", "gone")
    with pytest.raises(index.ResultsError, match=r"a\.md: no row 'gone'"):
        index.page(tmp_path)
    with pytest.raises(index.ResultsError, match=r"README\.md: the figures belong between"):
        index.with_comparison("no marks", "")
