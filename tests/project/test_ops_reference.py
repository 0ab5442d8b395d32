"""The generated page of operations, and the figures it states."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

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


def test_complex_gradients_exist_for_98_percent_of_the_ops_for_which_they_make_sense() -> None:
    share = next(share for share in coverage.shares(coverage.load()) if "complex" in share.what)
    assert share.percent >= 98, f"{share}: declare complex=True with a right rule, or say why not in coverage.REAL_ONLY"


def test_ops_named_as_real_only_exist_and_claim_no_complex_gradients() -> None:
    ops = coverage.load()
    listed = [name for names in coverage.REAL_ONLY.values() for name in names.split()]
    assert sorted(set(listed)) == sorted(listed)
    assert [name for name in listed if name not in ops or ops[name].complex] == []
