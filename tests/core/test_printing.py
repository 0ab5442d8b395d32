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


def test_a_single_number_is_formatted_as_the_number():
    loss = resilin.tensor(3.14, requires_grad=True)
    assert f"{loss} {resilin.tensor(7)} {resilin.tensor(True)}" == "3.140000104904175 7 True"
    assert f"{loss:.2f} {resilin.tensor(2.5, dtype=resilin.bfloat16)}" == "3.14 2.5"
    assert f"{resilin.ones(2)}" == "tensor([1., 1.])"


@pytest.mark.parametrize("x", [resilin.ones(2), resilin.ones(1)])
def test_a_format_is_for_a_single_number(x):
    with pytest.raises(TypeError, match=r"unsupported format string passed to Tensor\.__format__"):
        f"{x:.3f}"


def test_limits_of_dtypes_are_written_as_by_pytorch():
    assert repr(resilin.finfo(resilin.bfloat16)) == (
        "finfo(resolution=0.01, min=-3.38953e+38, max=3.38953e+38, eps=0.0078125, smallest_normal=1.17549e-38, "
        "tiny=1.17549e-38, dtype=bfloat16)"
    )


def test_zeros_are_not_written_scientifically():
    resilin.set_printoptions(sci_mode=True)
    try:
        assert repr(resilin.zeros(2)) == "tensor([0., 0.])"
    finally:
        resilin.set_printoptions(sci_mode=None)
