"""What native code gathers for an optimizer's step, and counts after it, is what the loops in Python do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels.loader import native
from resilin.optim import lists

pytestmark = pytest.mark.skipif(native is None, reason="there is no native code here")

MADE: dict[str, Any] = {
    "SGD": lambda params: resilin.optim.SGD(params, lr=0.1),
    "SGD with momentum": lambda params: resilin.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda params: resilin.optim.Adam(params, lr=0.1),
    "AdamW with amsgrad": lambda params: resilin.optim.AdamW(params, lr=0.1, amsgrad=True),
    "RMSprop": lambda params: resilin.optim.RMSprop(params, lr=0.1, momentum=0.9, centered=True),
    "Adagrad": lambda params: resilin.optim.Adagrad(params, lr=0.1),
    "NAdam": lambda params: resilin.optim.NAdam(params, lr=0.1),
    "Rprop": lambda params: resilin.optim.Rprop(params, lr=0.1),
}
PARAMETERS: dict[str, Any] = {
    "plain": lambda: [resilin.randn(3, 5), resilin.randn(4), resilin.randn(0)],
    "strided": lambda: [resilin.randn(3, 5).t(), resilin.randn(4)],
    "of several dtypes": lambda: [resilin.randn(3), resilin.randn(4).double(), resilin.randn(5).bfloat16()],
    "complex": lambda: [resilin.randn(3), resilin.randn(4, dtype=resilin.complex64)],
}
LEFT_OUT = {2: [0], 4: [0, 1]}  # by step: parameters without a gradient


def _trained(make: Any, parameters: str) -> list[Any]:
    resilin.manual_seed(0)
    params = [resilin.nn.Parameter(x) for x in PARAMETERS[parameters]()]
    optimizer = make(params)
    for step in range(6):
        for number, p in enumerate(params):
            grad = resilin.randn(p.shape).to(p.dtype)
            p.grad = None if number in LEFT_OUT.get(step, ()) else grad
        optimizer.step()
    states = [sorted(optimizer.state[p].items()) if p in optimizer.state else [] for p in params]
    arrays = [(name, np.asarray(x.detach().float() if x.dtype is resilin.bfloat16 else x.detach()).tobytes())
              for entry in states for name, x in entry if x is not None]  # fmt: skip
    found = [p.detach().float() if p.dtype is resilin.bfloat16 else p.detach() for p in params]
    return [arrays, [x.numpy().tobytes() for x in found], [p._version for p in params]]


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("name", MADE)
def test_steps_are_those_of_the_loops_in_python(name: str, parameters: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = _trained(MADE[name], parameters)
    monkeypatch.setattr(lists, "_native_lists", lambda *_: None)
    monkeypatch.setattr(lists, "_native_advance", lambda *_: None)
    assert fast == _trained(MADE[name], parameters)


def _parameter(value: float = 1.0) -> Any:
    made = resilin.nn.Parameter(resilin.full((3,), value))
    made.grad = resilin.ones(3)
    return made


def _entry(step: Any, **more: Any) -> dict[str, Any]:
    return {"step": step, "mean": resilin.zeros(3), **more}


def test_lists_of_the_usual_are_the_arrays_of_those_with_gradients() -> None:
    a, b, c = _parameter(), _parameter(), _parameter()
    b.grad = None
    state = {a: _entry(resilin.tensor(2.0)), c: _entry(resilin.tensor(2.0))}
    found = lists.usual([a, b, c], state, ("step",), ("mean",))
    assert found is not None
    parameters, entries, counters, arrays = found
    assert [id(p) for p in parameters] == [id(a), id(c)]
    assert [id(entry) for entry in entries] == [id(state[a]), id(state[c])]
    assert counters == [2.0]
    expected = lists.arrays(parameters, entries, ("mean",))
    assert [[id(x) for x in each] for each in arrays] == [[id(x) for x in each] for each in expected]


@pytest.mark.parametrize(
    ("steps", "change"),
    [
        ((1.0, 2.0), {}),
        ((1.0, None), {}),
        ((1.0, 1.0), {"step": 1}),
        ((1.0, 1.0), {"step": resilin.ones(1)}),
        ((1.0, 1.0), {"step": resilin.tensor(1.0).double()}),
        ((1.0, 1.0), {"mean": None}),
        ((1.0, 1.0), {"mean": np.zeros(3)}),
    ],
)
def test_the_unusual_is_left_to_the_loops_in_python(steps: Any, change: dict[str, Any]) -> None:
    params = [_parameter(), _parameter()]
    made = zip(params, steps, strict=True)
    state = {p: {**_entry(resilin.tensor(step)), **change} for p, step in made if step is not None}
    assert lists.usual(params, state, ("step",), ("mean",)) is None


def test_nothing_and_other_containers_are_left_to_the_loops_in_python() -> None:
    p = _parameter()
    assert lists.usual((p,), {}, (), ()) is None
    assert lists.usual([], {}, (), ()) is None
    p.grad = None
    assert lists.usual([p], {}, (), ()) is None
