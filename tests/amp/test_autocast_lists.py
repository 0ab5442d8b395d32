"""Inside autocast, functions give the dtypes that PyTorch's give: fixtures by tests/fixtures/make_torch_autocast.py."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import resilin as rs
import resilin.nn.functional as F
from resilin import nn
from resilin.core.api.nn import recurrent
from resilin.core.autocast import lists, state
from resilin.core.autocast.state import here
from resilin.core.public import names
from resilin.linalg import older

LISTS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "fixtures/torch_autocast.json").read_text(encoding="utf-8")
)
CASES = {expression: found for each in LISTS.values() for expression, found in each.items()}


def values(*shape: int) -> rs.Tensor:
    count = 1
    for n in shape:
        count *= n
    made: rs.Tensor = rs.arange(1, count + 1, dtype=rs.float32).sin().reshape(shape)
    return made


def namespace(dtype: rs.dtype) -> dict[str, Any]:
    """What an expression may use, as the fixture's script has it."""

    def positive(n: int) -> rs.Tensor:
        with rs.autocast("cpu", enabled=False):
            a = values(n, n)
            return (a @ a.t() + n * rs.eye(n)).to(dtype)

    return {
        "torch": rs,
        "nn": nn,
        "F": F,
        "x": lambda *shape: values(*shape).to(dtype),
        "w": lambda *shape: values(*shape).requires_grad_(),
        "i": lambda *shape: rs.arange(values(*shape).numel()).reshape(shape) % 3,
        "p": positive,
    }


def dtypes_of(value: Any) -> list[str]:
    if isinstance(value, rs.Tensor):
        return [str(value.dtype).rpartition(".")[2]]
    return [dtype for each in value for dtype in dtypes_of(each)] if isinstance(value, tuple | list) else []


def sums_of(value: Any) -> list[float]:
    if isinstance(value, rs.Tensor):
        return [value.double().sum().item()] if value.is_floating_point() else []
    return [number for each in value for number in sums_of(each)] if isinstance(value, tuple | list) else []


def run(expression: str, dtype: str, lower: str) -> Any:
    with rs.autocast("cpu", dtype=getattr(rs, lower)):
        return eval(expression, namespace(getattr(rs, dtype)))


@pytest.mark.parametrize("expression", list(CASES))
def test_a_function_gives_the_dtypes_that_pytorch_gives(expression: str) -> None:
    found, expected = {}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for lower in ("bfloat16", "float16"):
            for dtype, made in CASES[expression][lower].items():
                if made is not None:
                    found[lower, dtype], expected[lower, dtype] = dtypes_of(run(expression, dtype, lower)), made
    assert found == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", [each for each, found in CASES.items() if found["sums"]])
def test_a_function_gives_the_numbers_that_pytorch_gives(expression: str) -> None:
    found = sums_of(run(expression, "float32", "bfloat16"))
    assert found == pytest.approx(CASES[expression]["sums"], rel=0.02, abs=0.05)


def public_functions() -> list[Any]:
    """All, of the packages that publish some, and the operators of tensors."""
    places = (names, rs.linalg, older, rs.fft, rs.special, F, recurrent, rs.Tensor)
    return [value for place in places for value in vars(place).values() if hasattr(value, "is_listed")]


def test_every_function_of_the_lists_is_there_and_marked() -> None:
    by_name: dict[str, list[Any]] = {}
    for function in public_functions():
        by_name.setdefault(function.__name__, []).append(function)
    assert set(by_name) >= lists.LISTED
    assert {name for name, found in by_name.items() if any(each.is_listed for each in found)} == lists.LISTED


def test_a_function_is_on_one_list_of_a_device() -> None:
    for device_lists in (lists._CPU, lists._CUDA):
        names = [name for text in device_lists.values() for name in text.split()]
        assert len(names) == len(set(names))


@pytest.fixture
def sim_as_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CUDA's lists for the simulated device, which has no precision of its own that could be asked for."""
    for tables in (lists.POLICIES, lists.WHEN, lists.REFUSED):
        monkeypatch.setitem(tables, "sim", tables.get("cuda", {}))
    monkeypatch.setitem(here.dtypes, "sim", rs.float16)
    before, here.enabled = here.enabled, frozenset({"sim"})
    state._count(1)
    yield
    state._count(-1)
    here.enabled = before


def test_cudas_lists_run_exponentials_and_sums_in_float32(sim_as_cuda: None) -> None:
    x = rs.randn(2, 3, device="sim").half()
    assert (x @ x.t()).dtype is rs.float16
    assert x.float().mm(x.t()).dtype is rs.float16
    assert {each.dtype for each in (x.exp(), x.softmax(-1), x.sum(), F.layer_norm(x, (3,)), x**2)} == {rs.float32}
    assert (x + x).dtype is rs.float16


def test_cudas_lists_refuse_binary_cross_entropy_of_probabilities(sim_as_cuda: None) -> None:
    x = rs.rand(3, device="sim")
    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


def test_tensors_of_another_device_stay_as_they_are(sim_as_cuda: None) -> None:
    x = rs.randn(2, 2)
    assert (x @ x).dtype is rs.float32
