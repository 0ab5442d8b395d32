"""Functions of several steps in one pass: the bits of the steps, in place, and where a graph follows them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.machine import threads
from resilin.nn import functional as F

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -3e38, 3e38, 0.5, -0.5]
CALLS: dict[str, Callable[..., Any]] = {
    "lerp": lambda x, y, z: x.lerp(y, z),
    "lerp of a number near the start": lambda x, y, z: x.lerp(y, 0.3),
    "lerp of a number near the end": lambda x, y, z: x.lerp(y, 0.7),
    "addcmul": lambda x, y, z: resilin.addcmul(x, y, z, value=0.1),
    "addcdiv": lambda x, y, z: resilin.addcdiv(x, y, z, value=0.1),
    "nan_to_num": lambda x, y, z: x.nan_to_num(1.5, neginf=-2.0),
    "copysign": lambda x, y, z: x.copysign(y),
    "heaviside": lambda x, y, z: x.heaviside(y),
    "sign": lambda x, y, z: x.sign(),
}
IN_PLACE: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, z, end: getattr(x, "add" + end)(y, alpha=0.3),
    "sub": lambda x, y, z, end: getattr(x, "sub" + end)(y, alpha=3),
    "lerp": lambda x, y, z, end: getattr(x, "lerp" + end)(y, z),
    "addcmul": lambda x, y, z, end: getattr(x, "addcmul" + end)(y, z, value=0.1),
    "addcdiv": lambda x, y, z, end: getattr(x, "addcdiv" + end)(y, z),
    "nan_to_num": lambda x, y, z, end: getattr(x, "nan_to_num" + end)(),
    "neg": lambda x, y, z, end: getattr(x, "neg" + end)(),
    "abs": lambda x, y, z, end: getattr(x, "abs" + end)(),
    "relu": lambda x, y, z, end: getattr(x, "relu" + end)(),
}


def _three(n: int) -> list[Any]:
    r = np.random.default_rng(n)
    made = [r.normal(size=n).astype(np.float32) for _ in range(3)]
    for x in made:
        x[: len(SPECIAL)] = r.permutation(SPECIAL)[:n]
    return [resilin.tensor(x) for x in made]


def _bits(x: Any) -> bytes:
    return np.where(np.isnan(x.numpy()), np.float32(np.nan), x.numpy()).tobytes()


def _strided(x: Any) -> Any:
    return resilin.stack([x, x], 1)[:, 0]  # which goes step by step


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("n", [1, 17, 1003])
def test_one_pass_has_the_bits_of_its_steps(name: str, n: int) -> None:
    given = _three(n)
    steps = [x.detach().requires_grad_() for x in given] if name not in ("sign", "heaviside") else map(_strided, given)
    assert _bits(CALLS[name](*given)) == _bits(CALLS[name](*steps).detach())


@pytest.mark.parametrize("name", IN_PLACE)
def test_one_pass_in_place_is_the_function_and_counts_the_write(name: str) -> None:
    for x, y, z in (_three(1003), map(_strided, _three(1003))):
        expected, version = _bits(IN_PLACE[name](x, y, z, "")), x._version
        assert IN_PLACE[name](x, y, z, "_") is x
        assert _bits(x) == expected
        assert x._version == version + 1


def test_one_pass_in_place_reads_what_it_overwrites_before() -> None:
    whole = resilin.arange(10.0)
    whole[1:].add_(whole[:-1], alpha=2)
    assert whole.tolist() == [0.0] + [k + 2.0 * (k - 1) for k in range(1, 10)]
    same = resilin.arange(5.0)
    assert same.addcmul_(same, same).tolist() == [k + k * k for k in range(5)]


def test_one_pass_in_place_is_followed_by_the_graph() -> None:
    x = resilin.ones(3, requires_grad=True)
    y = x * 2
    y.addcmul_(x, x, value=0.5).lerp_(resilin.zeros(3), 0.25)
    y.sum().backward()
    assert x.grad.tolist() == [0.75 * (2 + 1)] * 3
    with pytest.raises(RuntimeError, match="leaf"):
        x.addcdiv_(x, x)


def test_one_pass_is_the_same_for_any_number_of_threads() -> None:
    given, before, found = _three(140_000), threads.get_num_threads(), set()
    for count in (1, 2):
        threads.set_num_threads(count)
        found.add(b"".join(_bits(call(*given)) for call in CALLS.values()))
    threads.set_num_threads(before)
    assert len(found) == 1


def test_logarithms_of_sums_keep_their_digits() -> None:
    r = np.random.default_rng(0)
    ends = np.array([0.0, -20.0, 60.0, np.inf, -np.inf, np.nan, 1e-30, -87.5])
    a, b = (v.ravel() for v in np.meshgrid(ends, ends))
    a, b = (np.concatenate([v, r.normal(size=2000) * s]).astype(np.float32) for v, s in ((a, 3), (b, 20)))
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp(a.astype(np.float64), b.astype(np.float64))
    found = resilin.logaddexp(resilin.tensor(a), resilin.tensor(b)).numpy()
    rounding = 4 * np.finfo(np.float32).eps
    np.testing.assert_allclose(found, expected, rounding, 2 * rounding)
    near = np.float32([0.0]), np.float32([-20.0])
    small = resilin.logaddexp(*map(resilin.tensor, near)).numpy()
    np.testing.assert_allclose(small, np.log1p(np.exp(-20.0)), rounding)


DTYPES = [resilin.float32, resilin.float64, resilin.float16, resilin.bfloat16]
LOSSES: dict[str, Callable[..., Any]] = {
    "mse": lambda x, t, r: F.mse_loss(x, t, reduction=r),
    "l1": lambda x, t, r: F.l1_loss(x, t, reduction=r),
    "smooth": lambda x, t, r: F.smooth_l1_loss(x, t, reduction=r, beta=0.3),
    "smooth without a bend": lambda x, t, r: F.smooth_l1_loss(x, t, reduction=r, beta=0.0),
    "huber": lambda x, t, r: F.huber_loss(x, t, reduction=r, delta=0.7),
}


def _same(found: Any, steps: Any) -> None:
    assert (found.dtype, found.shape, found.requires_grad) == (steps.dtype, steps.shape, False)
    assert _bits(found.float()) == _bits(steps.detach().float()) or found.dtype == resilin.float64
    assert found.dtype != resilin.float64 or resilin.equal(found.nan_to_num(7.0), steps.detach().nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_in_one_pass_have_the_bits_of_their_steps(name: str, dtype: Any) -> None:
    r = np.random.default_rng(0)
    for shape in [(1,), (7, 31), (1025,), (3, 70_001)]:
        x, t = (resilin.tensor(r.normal(size=shape)).to(dtype) for _ in range(2))
        for special in (None, np.nan, np.inf):
            if special is not None:
                x.view(-1)[-1] = special
            for reduction in ("none", "mean", "sum"):
                steps = LOSSES[name](x.detach().requires_grad_(), t, reduction)
                _same(LOSSES[name](x, t, reduction), steps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5,), (1, 1), (33, 10), (1500, 3), (4, 6, 3, 5)])
def test_likelihoods_in_one_pass_have_the_bits_of_their_steps(shape: Any, weighted: bool, dtype: Any) -> None:
    r = np.random.default_rng(0)
    classes = shape[1] if len(shape) > 1 else shape[0]
    x = resilin.tensor(-r.random(shape)).to(dtype)
    target = resilin.tensor(np.asarray(r.integers(0, classes, shape[:1] + shape[2:] if len(shape) > 1 else ())))
    weight = resilin.tensor(r.random(classes) + 0.5).to(dtype) if weighted else None
    for ignore in (-100, 0):
        for reduction in ("none", "mean", "sum"):
            with resilin.no_grad():
                found = F.nll_loss(x, target, weight, ignore_index=ignore, reduction=reduction)
            steps = F.nll_loss(x.detach().requires_grad_(), target, weight, ignore_index=ignore, reduction=reduction)
            _same(found, steps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (33, 10), (700, 64), (3, 1000), (2, 1500)])
def test_margins_in_one_pass_have_the_bits_of_their_steps(shape: Any, weighted: bool, dtype: Any) -> None:
    r = np.random.default_rng(0)
    x = resilin.tensor(r.normal(size=shape)).to(dtype)
    x[-1, 0] = float("inf")
    target = resilin.tensor(r.integers(0, shape[1], shape[0]))
    weight = resilin.tensor(r.random(shape[1]) + 0.5).to(dtype) if weighted else None
    for p in (1, 2):
        for reduction in ("none", "mean", "sum"):
            given = {"p": p, "margin": 0.7, "weight": weight, "reduction": reduction}
            steps = F.multi_margin_loss(x.detach().requires_grad_(), target, **given)
            _same(F.multi_margin_loss(x, target, **given), steps)


def test_a_target_that_is_no_class_is_refused() -> None:
    for wrong in (-1, 3):
        with pytest.raises(RuntimeError, match="out of range"):
            F.multi_margin_loss(resilin.zeros(2, 3), resilin.tensor([0, wrong]))
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match="out of bounds"):
            F.nll_loss(resilin.zeros(2, 3), resilin.tensor([0, wrong]))
    assert F.nll_loss(resilin.zeros(2, 3), resilin.tensor([1, 1]), ignore_index=1).isnan()


def test_losses_in_one_pass_are_the_same_for_any_number_of_threads() -> None:
    x, t, _ = _three(140_000)
    before, found = threads.get_num_threads(), set()
    for count in (1, 2):
        threads.set_num_threads(count)
        found.add(b"".join(_bits(call(x, t, "mean")) for call in LOSSES.values()))
    threads.set_num_threads(before)
    assert len(found) == 1
