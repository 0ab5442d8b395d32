"""The generated page of operations, and the figures it states."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from resilin.testing import coverage

ROOT = Path(__file__).resolve().parent.parent.parent


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("make_ops_reference", ROOT / "scripts" / "make_ops_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_operations_is_what_the_registry_says() -> None:
    script = _script()
    assert script.PAGE.read_text(encoding="utf-8") == script.text(), (
        "docs/reference/ops.md is out of date: run python scripts/make_ops_reference.py --write"
    )


@pytest.mark.parametrize("number", range(6))
def test_no_figure_of_the_coverage_falls(number: int) -> None:
    share = coverage.shares(coverage.load())[number]
    assert share.missing == (), f"{share}: declare samples and rules, add a reference, or say why not in coverage.py"


@pytest.mark.parametrize(
    ("table", "claimed"),
    [
        (coverage.REAL_ONLY, lambda op: op.complex),
        (coverage.NOT_FIRST, lambda op: op.order >= 1),
        (coverage.NOT_SECOND, lambda op: op.order >= 2),
    ],
    ids=["real only", "no first derivative", "no second derivative"],
)
def test_exceptions_name_ops_that_exist_once_and_do_not_claim_it(table: Any, claimed: Any) -> None:
    ops = coverage.load()
    listed = [name for names in table.values() for name in names.split()]
    assert sorted(set(listed)) == sorted(listed)
    assert [name for name in listed if name not in ops or claimed(ops[name])] == []
