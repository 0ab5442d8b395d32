"""Adafactor, Muon and SparseAdam against PyTorch's numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

import resilin
from resilin import optim
from resilin.errors import UsageError

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "torch_matrix_optimizers.json").read_text())
IDS = [f"{number}-{case['name']}" for number, case in enumerate(CASES)]
ROUNDING = {"Muon": 2e-3}  # bfloat16 inside: sums in another order round to neighbours


def unpack(value, dtype):
    return resilin.tensor(np.array(value["data"], dtype).reshape(value["shape"]))


def run(case, dtype):
    """Replay a fixture; yields the optimizer, the parameters and PyTorch's ones after each step."""
    params = [unpack(value, dtype).requires_grad_() for value in case["start"]]
    optimizer = getattr(optim, case["name"])(params, **case["options"])
    for grads, after in zip(case["grads"], case["after"], strict=True):
        for param, grad in zip(params, grads, strict=True):
            param.grad = unpack(grad, dtype)
        optimizer.step()
        yield optimizer, params, after


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize(("dtype", "tol"), [(np.float64, 1e-9), (np.float32, 2e-5)])
def test_every_step_equals_pytorchs(case, dtype, tol):
    tol = max(tol, ROUNDING.get(case["name"], 0))
    for _, params, after in run(case, dtype):
        for param, expected in zip(params, after, strict=True):
            found = param.detach().numpy()
            np.testing.assert_allclose(found, unpack(expected, np.float64).numpy(), rtol=tol, atol=tol)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_state_has_pytorchs_layout(case):
    *_, (optimizer, _, _) = run(case, np.float64)
    for number, entry in optimizer.state_dict()["state"].items():
        expected = case["state"][str(number)]
        assert set(entry) == set(expected)
        for name, value in entry.items():
            if isinstance(value, int):
                assert value == expected[name]
            else:
                wanted = unpack(expected[name], np.float64).numpy()
                assert value.shape == wanted.shape
                np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_state_dict_round_trip_continues_with_equal_bits(case):
    steps = run(case, np.float32)
    for _ in range(3):
        optimizer, params, _ = next(steps)
    copies = [param.detach().clone().requires_grad_() for param in params]
    other = type(optimizer)(copies, lr=0.7)
    other.load_state_dict(optimizer.state_dict())
    for _, params, _ in steps:
        for copy, param in zip(copies, params, strict=True):
            copy.grad = param.grad
        other.step()
        for copy, param in zip(copies, params, strict=True):
            assert copy.detach().numpy().tobytes() == param.detach().numpy().tobytes()


def test_muon_makes_steps_nearly_orthogonal():
    param = resilin.zeros(40, 30).requires_grad_()
    param.grad = resilin.tensor(np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32))
    optim.Muon([param], lr=1.0, weight_decay=0).step()
    values = np.linalg.svd(param.detach().numpy(), compute_uv=False) / np.sqrt(40 / 30)
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_sparse_adam_leaves_rows_without_gradient_alone():
    table = resilin.ones(4, 2).requires_grad_()
    optimizer = optim.SparseAdam([table], lr=0.1)
    for rows in ([0, 2], [2]):
        grad = np.zeros((4, 2), np.float32)
        grad[rows] = 1
        table.grad = resilin.tensor(grad)
        optimizer.step()
    found = table.detach().numpy()
    assert found[1].tolist() == found[3].tolist() == [1, 1]
    assert optimizer.state[table]["exp_avg"].numpy()[0] == pytest.approx(0.1)  # not decayed in the second step
    assert (found[2] < found[0]).all()
    assert (found[0] < 1).all()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda p: optim.Adafactor(p, beta2_decay=0.5), UsageError, "beta2_decay must not be above 0, got 0.5"),
        (lambda p: optim.Adafactor(p, d=0.5), UsageError, "d must be at least 1, got 0.5"),
        (lambda p: optim.Adafactor(p, eps=(None, -1)), UsageError, "Adafactor: eps"),
        (lambda p: optim.Adafactor([resilin.ones(2, dtype=resilin.complex64)]), NotImplementedError, "complex"),
        (lambda p: optim.Muon([resilin.ones(3).requires_grad_()]), UsageError, r"parameter 0 has shape \[3\].*AdamW"),
        (lambda p: optim.Muon(p, adjust_lr_fn="new"), UsageError, "adjust_lr_fn must be 'original'"),
        (lambda p: optim.Muon(p, ns_steps=100), UsageError, "ns_steps must be below 100"),
        (lambda p: optim.Muon(p, ns_coefficients=(1, 2)), UsageError, "three numbers, got 2"),
        (lambda p: optim.SparseAdam(p, lr=0), UsageError, "SparseAdam: lr must be above 0, got 0"),
        (lambda p: optim.SparseAdam([resilin.ones(2, dtype=resilin.complex64)]), UsageError, "complex"),
    ],
)
def test_mistakes_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make([resilin.ones(2, 2).requires_grad_()])
