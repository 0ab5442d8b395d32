"""The rules of the elementwise optimizers: native against numpy, on ragged sizes, with NaN, strides and threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resilin.core.kernels import loader, optimizer_rules
from resilin.core.machine import threads

RAGGED = [0, 1, 31, 33, 4097, 40001]
# name: which states there are (number of lists after parameters and gradients; "-" is one left out), and constants
CASES = {
    "adagrad": ("s", (1.0, 0.1, 0.05, 1e-10)),
    "adagrad, uphill": ("s", (-1.0, 0.0, 0.05, 1e-10)),
    "adadelta": ("ss", (1.0, 0.1, 0.9, 0.1, 1e-6, 0.5)),
    "adamax": ("ss", (1.0, 0.1, 0.1, 0.99, 1e-8, 0.02)),
    "rmsprop": ("s--", (1.0, 0.1, 0.9, 0.1, 1e-8, 0.0, 0.02)),
    "rmsprop, centered": ("bs-", (1.0, 0.1, 0.9, 0.1, 1e-8, 0.0, 0.02)),
    "rmsprop, momentum": ("s-s", (1.0, 0.1, 0.9, 0.1, 1e-8, 0.7, 0.02)),
    "rmsprop, both": ("bss", (-1.0, 0.1, 0.9, 0.1, 1e-8, 0.7, 0.02)),
    "rprop": ("ss", (1.0, 0.5, 1.2, 1e-6, 50.0)),
    "nadam": ("ss", (1.0, 0.1, 0.99, 0.1, 0.99, 0.01, 3.0, 1e-8, 0.01, 0.02)),
    "radam": ("ss", (1.0, 0.1, 0.99, 0.1, 0.99, 0.01, 1e-8, 0.05, 1.0)),
    "radam, early": ("ss", (1.0, 0.1, 0.99, 0.1, 0.99, 0.01, 1e-8, 0.05, 0.0)),
    "asgd": ("s", (1.0, 0.1, 0.99, 0.05, 0.3)),
    "asgd, early": ("s", (1.0, 0.1, 0.99, 0.05, 1.0)),
    "lion": ("s", (1.0, 0.99, 0.1, 0.01, 0.05)),
}


def make(rand: Any, kinds: str, sizes: list[int]) -> list[list[Any] | None]:
    """Parameters, gradients and states: "s" positive ones, "b" positive and above 1."""
    lists: list[list[Any] | None] = [[rand(n) for n in sizes], [rand(n) for n in sizes]]
    for kind in kinds:
        lists.append(None if kind == "-" else [np.abs(rand(n)) + (9 if kind == "b" else 0) for n in sizes])
    return lists


def copies(lists: list[list[Any] | None]) -> list[list[Any] | None]:
    return [None if arrays is None else [array.copy() for array in arrays] for arrays in lists]


def refer(name: str, lists: list[list[Any] | None], constants: tuple[float, ...]) -> None:
    for number in range(len(lists[0] or ())):
        states = [None if arrays is None else arrays[number] for arrays in lists]
        optimizer_rules.REFERENCES[name](*states, *[np.float32(c) for c in constants])


@pytest.mark.parametrize("case", CASES)
def test_the_native_rule_equals_its_reference(rand: Any, case: str) -> None:
    name, (kinds, constants) = case.partition(",")[0], CASES[case]
    fast = make(rand, kinds, RAGGED)
    slow = copies(fast)
    assert loader.native.optimizer_rule(name, tuple(fast), constants)
    with np.errstate(invalid="ignore"):
        refer(name, slow, constants)
    for ours, expected in zip(fast, slow, strict=True):
        for a, b in zip(ours or (), expected or (), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_nan_and_infinite_gradients_go_the_references_way(rand: Any, case: str) -> None:
    name, (kinds, constants) = case.partition(",")[0], CASES[case]
    fast = make(rand, kinds, [40])
    assert fast[1] is not None
    fast[1][0][:3] = [np.nan, np.inf, -np.inf]
    slow = copies(fast)
    assert loader.native.optimizer_rule(name, tuple(fast), constants)
    with np.errstate(invalid="ignore"):
        refer(name, slow, constants)
    for ours, expected in zip(fast, slow, strict=True):
        for a, b in zip(ours or (), expected or (), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_the_number_of_threads(rand: Any, case: str) -> None:
    name, (kinds, constants) = case.partition(",")[0], CASES[case]
    one = make(rand, kinds, [70001, 5])
    two = copies(one)
    before = threads.get_num_threads()
    try:
        for count, lists in ((1, one), (2, two)):
            threads.set_num_threads(count)
            optimizer_rules.apply(name, lists, constants)
    finally:
        threads.set_num_threads(before)
    for ours, expected in zip(one, two, strict=True):
        assert [a.tobytes() for a in ours or ()] == [b.tobytes() for b in expected or ()]


def test_every_rule_has_a_case() -> None:
    assert {case.partition(",")[0] for case in CASES} == set(optimizer_rules.REFERENCES)


def test_half_precision_is_stepped_in_float32(rand: Any) -> None:
    p = np.ones(3, np.float16)
    total = np.zeros(3, np.float16)
    optimizer_rules.apply("adagrad", [[p], [np.array([0, 1, 2], np.float16)], [total]], (1.0, 0.0, 0.5, 1e-10))
    assert p.tolist() == [1, 0.5, 0.5]
    assert total.tolist() == [0, 1, 4]


def test_a_state_that_does_not_fit_changes_nothing(rand: Any) -> None:
    p = rand(5)
    before = p.copy()
    with pytest.raises(ValueError, match=r"an array of shape \(4,\) beside a parameter of shape \(5,\)"):
        optimizer_rules.apply("adagrad", [[p], [rand(5)], [rand(4)]], CASES["adagrad"][1])
    assert p.tolist() == before.tolist()
