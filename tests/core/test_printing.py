"""Tensors are printed as PyTorch prints them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import resilin

CASES = json.loads((Path(__file__).parent.parent / "fixtures" / "torch_reprs.json").read_text())


@pytest.fixture(autouse=True)
def _default_options() -> Any:
    yield
    resilin.set_printoptions(profile="default")


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: str(entry["case"]))
def test_a_tensor_is_printed_as_by_pytorch(entry: Any) -> None:
    source, dtype, shape, options = (*entry["case"], None, None, None)[:4]
    resilin.set_printoptions(**(options or {}))
    data = eval(source, {"nan": math.nan, "inf": math.inf, "range": lambda n: list(range(n))})
    x = resilin.tensor(data, dtype=getattr(resilin, dtype) if dtype else None)
    assert repr(x if shape is None else x.reshape(*shape)).replace("resilin.", "torch.") == entry["text"]


def test_a_long_suffix_starts_a_line_of_its_own() -> None:
    lines = repr(resilin.arange(13.0, dtype=resilin.float64, requires_grad=True)).splitlines()
    assert lines[-1] == "       dtype=resilin.float64, requires_grad=True)"


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="profile must be one of"):
        resilin.set_printoptions(profile="tiny")
