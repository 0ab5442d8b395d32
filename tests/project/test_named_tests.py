"""Tests that the documentation names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if NAMED.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_test_that_a_page_names_exists(page):
    for file, test in NAMED.findall(page.read_text(encoding="utf-8")):
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), f"{file}::{test}"


def test_the_situations_of_a_job_have_tests():
    assert ROOT / "docs" / "testing.md" in PAGES
