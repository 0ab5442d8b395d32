"""Writes in place that native code makes in one pass are those of the way in Python, which gets all that is unusual."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels.loader import native
from resilin.core.machine import threads
from resilin.core.public import dispatch
from resilin.core.state import inplace

pytestmark = pytest.mark.skipif(native is None, reason="there is no native code here")

Make = Callable[[], resilin.Tensor]
CALLS: dict[str, tuple[Any, ...]] = {  # method and arguments, as `(arguments, names)`; `y` and `z` stand for tensors
    "add_": (("y",), {"alpha": 0.3}),
    "sub_": (("y",), {"alpha": 3}),
    "addcmul_": (("y", "z"), {"value": 0.1}),
    "addcdiv_": (("y", "z"), {}),
    "lerp_": (("y", 0.3), {}),
    "clamp_": ((-0.5, 0.5), {}),
    "clip_": ((), {"max": 1}),
    "copy_": (("y",), {}),
    "fill_": ((0.25,), {}),
    "zero_": ((), {}),
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38]


def _numbers(seed: int, n: int = 37) -> resilin.Tensor:
    found = np.random.default_rng(seed).normal(size=n).astype(np.float32)
    found[: len(SPECIAL)] = SPECIAL
    return resilin.from_numpy(np.roll(found, seed))


TARGETS: dict[str, Make] = {
    "float32": lambda: _numbers(0),
    "float64": lambda: _numbers(0).double(),
    "float16": lambda: _numbers(0).half(),
    "bfloat16": lambda: _numbers(0).bfloat16(),
    "integers": lambda: resilin.arange(37),
    "strided": lambda: _numbers(0, 74)[::2],
    "a view": lambda: _numbers(0, 40)[3:],
    "one element": lambda: _numbers(0, 37)[:1],
    "nothing": lambda: _numbers(0)[:0],
    "expanded": lambda: resilin.ones(1).expand(37),
    "a leaf": lambda: resilin.ones(37, requires_grad=True),
    "a parameter": lambda: resilin.nn.Parameter(_numbers(0)),
    "a view of a leaf": lambda: resilin.ones(40, requires_grad=True)[3:],
}


def _made(method: Any, name: str, make: Make) -> tuple[Any, ...]:
    x = make()
    tensors = {"y": _numbers(1)[: len(x)].to(x.dtype), "z": _numbers(2)[: len(x)].to(x.dtype)}
    version = x._version
    arguments, named = CALLS[name]
    try:
        result = method(x, *[tensors.get(one, one) if isinstance(one, str) else one for one in arguments], **named)
    except (RuntimeError, TypeError, ValueError) as error:
        return type(error), str(error), x._version - version
    found = x.detach().double().numpy()
    return result is x, x._version - version, np.where(np.isnan(found), np.nan, found).tobytes(), x.requires_grad


def _in_python(method: Any) -> Any:
    """The method without native code in front, as a public function that explains its errors alike."""
    inner = method
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    return dispatch.public(inner, "resilin", method.__qualname__, func=method)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_a_short_write_is_that_of_the_way_in_python(name: str, recorded: bool, target: str) -> None:
    method = getattr(resilin.Tensor, name)
    with resilin.set_grad_enabled(recorded):
        assert _made(method, name, TARGETS[target]) == _made(_in_python(method), name, TARGETS[target])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.add_(resilin.ones(1), alpha=2),
        lambda x: x.add_(resilin.ones(37, dtype=resilin.float64), alpha=2),
        lambda x: x.add_(x, alpha=2),
        lambda x: x[1:].add_(x[:-1], alpha=2)._base,
        lambda x: x[1:].copy_(x[:-1])._base,
        lambda x: x.copy_(x),
        lambda x: x.copy_(resilin.arange(37)),
        lambda x: x.copy_(resilin.ones(1)),
        lambda x: x.copy_(2.5),
        lambda x: x.copy_(resilin.ones(37), non_blocking=True),
        lambda x: x.fill_(1e37),
        lambda x: x.fill_(True),
        lambda x: x.fill_(resilin.tensor(2.0)),
        lambda x: x.fill_(value=3),
        lambda x: x.clamp_(1, -1),
        lambda x: x.clamp_(min=resilin.zeros(37)),
        lambda x: x.lerp_(resilin.ones(37), weight=0.7),
        lambda x: x.lerp_(resilin.ones(37), resilin.ones(37)),
        lambda x: x.add_(resilin.ones(37), alpha=10**30),
        lambda x: x.addcmul_(resilin.ones(37), resilin.ones(37), value=np.float64(0.1)),
    ],
)
def test_unusual_arguments_are_understood(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = call(_numbers(0)).numpy().copy()
    for name in ("add_", "copy_", "fill_", "clamp_", "lerp_", "addcmul_"):
        monkeypatch.setattr(resilin.Tensor, name, _in_python(getattr(resilin.Tensor, name)))
    np.testing.assert_array_equal(fast, call(_numbers(0)).numpy())


def test_errors_are_those_of_the_way_in_python() -> None:
    x = _numbers(0)
    for wrong in (lambda: x.clamp_(), lambda: x.lerp_(x), lambda: x.fill_(), lambda: x.copy_(resilin.ones(3))):
        with pytest.raises((RuntimeError, TypeError)):
            wrong()
    assert x._version == 0


def test_a_short_write_into_a_tensor_of_inference_mode_is_refused_outside_of_it() -> None:
    with resilin.inference_mode():
        x = resilin.ones(3)
    for write in (x.zero_, lambda: x.clamp_(0, 1), lambda: x.copy_(resilin.ones(3))):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            write()


def test_short_writes_have_the_same_bits_for_any_number_of_threads() -> None:
    before, found = threads.get_num_threads(), set()
    for count in (1, 2):
        threads.set_num_threads(count)
        x, y = _numbers(0, 140_001), _numbers(1, 140_001)
        x.add_(y, alpha=0.3).clamp_(-1, 1).lerp_(y, 0.3)
        x[70_000:].copy_(y[70_000:])
        x[:10].zero_()
        x[20:70_000].fill_(0.5)
        found.add(x.numpy().tobytes())
    threads.set_num_threads(before)
    assert len(found) == 1


def test_short_writes_keep_nothing_alive() -> None:
    x, y = resilin.ones(3), resilin.ones(3)
    x.add_(y, alpha=0.5)
    before = [sys.getrefcount(value) for value in (x, y, x._array, x._vc)]
    for _ in range(1000):
        x.add_(y, alpha=0.5).copy_(y).clamp_(0, 1).zero_()
    assert [sys.getrefcount(value) for value in (x, y, x._array, x._vc)] == before


def test_what_has_no_short_way_stays_what_it_is() -> None:
    def method(self: Any) -> Any:
        return self

    method.__name__ = "unknown_"
    assert inplace._in_native(method) is method
