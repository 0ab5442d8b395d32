"""Optimizers step all parameters of a device in one launch, with the bits of their rules in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_work import WORK

import resilin as torch
from resilin.core import dtype as dtypes
from resilin.core.kernels import optimizer_rules
from resilin.core.kernels.cuda import multi_tensor, tracing

FLOAT, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
HALF, BRAIN = np.dtype(np.float16), dtypes.bfloat16.np
SHAPES = [(3,), (0,), (70, 31), (1,), (2, 2, 257)]
# The states ("-" is one left out), and constants
CASES = {
    "adadelta": ("ss", (1.0, 0.1, 0.9, 0.1, 1e-6, 0.5)),
    "adagrad": ("s", (-1.0, 0.0, 0.05, 1e-10)),
    "adam": ("ss-", (1.0, 0.0, 0.99, 0.1, 0.99, 0.01, 0.3, 1e-8, 0.02)),
    "adam, largest": ("sss", (-1.0, 0.1, 1.0, 0.1, 0.99, 0.01, 0.3, 1e-8, 0.02)),
    "adamax": ("ss", (1.0, 0.1, 0.1, 0.99, 1e-8, 0.02)),
    "asgd": ("s", (1.0, 0.1, 0.99, 0.05, 0.3)),
    "asgd, early": ("s", (1.0, 0.1, 0.99, 0.05, 1.0)),
    "lion": ("s", (1.0, 0.99, 0.1, 0.01, 0.05)),
    "nadam": ("ss", (1.0, 0.1, 0.99, 0.1, 0.99, 0.01, 3.0, 1e-8, 0.01, 0.02)),
    "radam": ("ss", (1.0, 0.1, 0.99, 0.1, 0.99, 0.01, 1e-8, 0.05, 1.0)),
    "radam, early": ("ss", (1.0, 0.1, 0.99, 0.1, 0.99, 0.01, 1e-8, 0.05, 0.0)),
    "rmsprop": ("s--", (1.0, 0.1, 0.9, 0.1, 1e-8, 0.0, 0.02)),
    "rmsprop, both": ("sss", (-1.0, 0.1, 0.9, 0.1, 1e-8, 0.7, 0.02)),
    "rprop": ("ss", (1.0, 0.5, 1.2, 1e-6, 50.0)),
    "sgd": ("-", (-1.0, 0.1, 0.0, 1.0, 0.05, 0.0, 0.0)),
    "sgd, nesterov": ("s", (1.0, 0.1, 0.9, 0.8, 0.05, 1.0, 0.0)),
    "sgd, first": ("s", (1.0, 0.0, 0.9, 0.8, 0.05, 0.0, 1.0)),
}


def draws(kinds: str, parameter: Any, state: Any) -> list[Any]:
    """Parameters, gradients with what is no number among them, and states."""
    random = np.random.default_rng(7)
    lists = [[random.standard_normal(shape).astype(parameter) for shape in SHAPES] for _ in range(2)]
    lists[1][2][0, :3] = [np.nan, np.inf, -np.inf]
    for kind in kinds:
        arrays = [np.abs(random.standard_normal(shape)).astype(state) for shape in SHAPES]
        lists.append(None if kind == "-" else arrays)  # type: ignore[arg-type]
    return lists


def check_bits(cuda: Any, case: str, parameter: Any, state: Any) -> None:
    name, (kinds, constants) = case.partition(",")[0], CASES[case]
    expected = draws(kinds, parameter, state)
    found = [None if arrays is None else [cuda.xp.asarray(array) for array in arrays] for arrays in expected]
    assert not cuda.xp.faults.word.get().any()  # and it is there
    WORK.clear()
    optimizer_rules.dispatch(name, found, lambda: constants, lambda lists: False)
    if hasattr(cuda.cupy, "API"):
        assert WORK.totals() == {"launches": 1, "waits": 0, "copies": 1}
    with np.errstate(all="ignore"):
        optimizer_rules.step_by_step(optimizer_rules.RULES[name], expected, constants)
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours or (), theirs or (), strict=True):
            assert a.dtype == b.dtype
            wide = np.float64
            np.testing.assert_array_equal(a.get().astype(wide), b.astype(wide), err_msg=case)


@pytest.mark.parametrize("case", CASES)
def test_a_step_has_the_bits_of_its_rule(cuda, case):
    check_bits(cuda, case, FLOAT, FLOAT)


@pytest.mark.parametrize("dtypes_of", [(DOUBLE, DOUBLE), (HALF, HALF), (BRAIN, BRAIN), (BRAIN, FLOAT)], ids=str)
@pytest.mark.parametrize("case", ["adam", "rmsprop, both"])
def test_a_step_has_the_bits_of_its_rule_in_other_dtypes(cuda, case, dtypes_of):
    check_bits(cuda, case, *dtypes_of)


def test_every_rule_has_a_case():
    assert {case.partition(",")[0] for case in CASES} == set(optimizer_rules.RULES)


def test_parameters_that_no_kernel_takes_are_stepped_one_by_one_and_equally(cuda):
    xp = cuda.xp
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    lists = [[whole.copy()[:, ::2], whole.T.copy().T, whole.copy()], [whole[:, ::2] / 3, whole / 3, whole / 3]]
    on_device = [[xp.asarray(a) for a in arrays] for arrays in lists]
    on_device[0][0] = xp.asarray(whole)[:, ::2]  # with gaps
    on_device[1][1] = xp.asarray(whole.T.copy() / 3).T  # as its parameter lies
    on_device[0][1] = xp.asarray(whole.T.copy()).T
    on_device[1][2] = xp.asarray(whole.T.copy() / 3).T  # not as its parameter lies
    constants = (1.0, 0.0, 0.0, 1.0, 0.5, 0.0, 0.0)
    optimizer_rules.dispatch("sgd", [*on_device, None], lambda: constants, lambda lists: False)
    optimizer_rules.step_by_step(optimizer_rules.sgd, [*lists, None], constants)
    for a, b in zip(on_device[0], lists[0], strict=True):
        np.testing.assert_array_equal(a.get(), b)


def test_the_blocks_of_a_step_are_those_of_its_pieces_however_unlike_the_tensors_are(cuda):
    sizes = [1, multi_tensor.PIECE + 1, 0, 3 * multi_tensor.PIECE, *[2] * 70]
    parameters = [cuda.xp.asarray(np.arange(size, dtype=np.float32) + i) for i, size in enumerate(sizes)]
    gradients = [cuda.xp.asarray(np.ones(size, np.float32)) for size in sizes]
    assert not cuda.xp.faults.word.get().any()  # and it is there
    WORK.clear()
    constants = (1.0, 0.0, 0.0, 1.0, 0.5, 0.0, 0.0)
    optimizer_rules.dispatch("sgd", [parameters, gradients, None], lambda: constants, lambda lists: False)
    if hasattr(cuda.cupy, "API"):
        assert WORK.totals()["launches"] == 1
    if hasattr(cuda.xp.driver, "null"):
        assert tuple(cuda.xp.driver.null.launches[-1].grid) == (1 + 2 + 3 + 70, 1, 1)
    for i, (found, size) in enumerate(zip(parameters, sizes, strict=True)):
        np.testing.assert_array_equal(found.get(), np.arange(size, dtype=np.float32) + i - 0.5)


def test_a_name_without_a_rule_is_refused(cuda):
    arrays = [cuda.xp.zeros(2, np.float32)]
    with pytest.raises(KeyError, match="adammm"):
        optimizer_rules.dispatch("adammm", [arrays, arrays], tuple, lambda lists: False)


def test_a_kernel_serves_all_constants_that_take_its_branches(cuda):
    rule, signature = optimizer_rules.sgd, ("float32", "float32", "float32")
    one = multi_tensor.program("sgd", rule, signature, (1.0, 0.1, 0.9, 1.0, 0.05, 0.0, 0.0))
    assert multi_tensor.program("sgd", rule, signature, (2.0, 0.3, 0.1, 0.5, 1.0, 0.0, 0.0)) is one
    for place, value in ((0, -1.0), (1, 0.0), (5, 1.0), (6, 1.0)):
        constants = [1.0, 0.1, 0.9, 1.0, 0.05, 0.0, 0.0]
        constants[place] = value
        assert multi_tensor.program("sgd", rule, signature, constants) is not one


def test_all_branches_of_a_rule_are_among_the_kernels_that_are_checked():
    checked = {made.name for made in multi_tensor.all_programs("adam", optimizer_rules.adam)}
    for sign in (1.0, -1.0):
        for decay in (0.0, 0.1):
            for shrink in (1.0, 0.9):
                constants = (sign, decay, shrink, 0.1, 0.9, 0.1, 0.5, 1e-8, 0.1)
                made = multi_tensor.program("adam", optimizer_rules.adam, ("float64",) * 5, constants)
                assert made.name in checked
    assert len(checked) == 8 * 2 * len(multi_tensor.SIGNATURES)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_on_the_device_gives_the_parameters_of_the_cpu(cuda, set_to_none):
    def trained(where: str) -> list[Any]:
        torch.manual_seed(0)
        weights = [torch.randn(3, 2, device="cpu").to(where).requires_grad_() for _ in range(3)]
        optimizer = torch.optim.AdamW(weights, lr=0.1, amsgrad=True)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            sum((w * w).sum() for w in weights).backward()
            optimizer.step()
        return [w.detach().cpu().numpy() for w in weights]

    for ours, expected in zip(trained("cuda"), trained("cpu"), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_a_branch_on_an_element_and_an_unknown_function_are_not_traced():
    trace = tracing.Trace()
    x = tracing.Symbol(trace, FLOAT, "x0")
    with pytest.raises(tracing.NotTraced, match="a branch on an element"):
        bool(x > 0)
    with pytest.raises(tracing.NotTraced, match="cumsum has no counterpart"):
        tracing.Namespace().cumsum(x)
    with pytest.raises(tracing.NotTraced, match="an element has no reshape"):
        x.reshape(3)


@pytest.mark.parametrize("value", [0.1, -0.0, 1e-45, float("inf"), -float("inf")])
def test_numbers_are_written_exactly(value):
    text = tracing.literal(value, FLOAT)
    if np.isfinite(value):
        written = float.fromhex(text.strip("()").removesuffix("f"))
        assert np.float32(written).tobytes() == np.float32(value).tobytes()
        assert written == float(np.float32(value))
    else:
        assert text == f"{'-' if value < 0 else ''}Numbers<float>::infinity()"
