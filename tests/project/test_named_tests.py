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


SECURITY = ROOT / "docs" / "security.md"
ROW = re.compile(r"^\| (?!asset |file |---)(.*) \|$", re.MULTILINE)


def test_every_promise_of_security_names_the_test_that_attacks_it():
    text = SECURITY.read_text(encoding="utf-8")
    assert SECURITY in PAGES
    rows = [row.split(" | ") for row in ROW.findall(text)]
    assert len(rows) > 20
    for asset, promise, tests in rows:
        assert promise, asset
        named = NAMED.findall(tests)
        assert named, f"{asset}: expected the test that plays the attacker"
        assert len(named) == tests.count("::") == len(tests.split(", ")), (
            f"{asset}: not all of these are names of tests"
        )


def test_what_security_does_not_promise_is_said():
    unsaid = SECURITY.read_text(encoding="utf-8").partition("## What is not promised")[2].partition("\n## ")[0]
    for word in ("authenticated at its start only", "pickle", "Root", "etcd"):
        assert word in unsaid
