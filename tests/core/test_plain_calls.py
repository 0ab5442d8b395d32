"""The native way through an op gives what the way in Python gives, and leaves to it what it does not handle."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels.loader import native
from resilin.core.ops import calling
from resilin.core.ops.registry import OPS

pytestmark = pytest.mark.skipif(not hasattr(native, "plain_call"), reason="there are no native kernels here")


def plain(name: str) -> Any:
    """The native call of op `name`."""
    return calling._plain(OPS[name])


def test_it_adds_tensors_and_numbers() -> None:
    a = resilin.tensor([1.0, 2.0])
    add = plain("add")
    assert add(a, a).tolist() == [2, 4]
    assert add(a, 1).tolist() == [2, 3]
    assert add(0.5, a).tolist() == [1.5, 2.5]
    assert type(add(a, resilin.nn.Parameter(a, requires_grad=False))) is resilin.Tensor


class Mine(resilin.Tensor):
    """A subclass."""


@pytest.mark.parametrize(
    "arguments",
    [
        lambda a: (a, resilin.tensor([1, 2])),  # promoted
        lambda a: (resilin.tensor([1, 2]), 1.5),
        lambda a: (a, np.float64(1)),
        lambda a: (a, np.ones(2)),
        lambda a: (a, True),
        lambda a: (a, None),
        lambda a: (a, "1"),
        lambda a: (1, 2),
        lambda a: (a,),
        lambda a: (a, a, a),
        lambda a: (a, a.to("sim:1")),
        lambda a: (a.to("sim:1"), a.to("sim:1")),
        lambda a: (a, resilin.ones(3)),  # an error, said by the way in Python
        lambda a: (a.as_subclass(Mine), a),
    ],
)
def test_it_leaves_the_rest_to_the_way_in_python(arguments: Any) -> None:
    assert plain("add")(*arguments(resilin.tensor([1.0, 2.0]))) is None


def test_integers_that_an_op_computes_as_floats_are_left() -> None:
    assert plain("exp")(resilin.tensor([1, 2])) is None
    assert plain("divide")(resilin.tensor([1, 2]), resilin.tensor([1, 2])) is None


def test_defaults_of_parameters_are_filled_in() -> None:
    x = resilin.ones(2, 3)
    assert plain("sum")(x).item() == 6
    assert plain("sum")(x, 1).tolist() == [3, 3]
    assert plain("sum")(x, 1, True).shape == (2, 1)
    assert plain("sum")(x, 1, True, 4) is None


def test_results_are_recorded_as_in_python() -> None:
    w = resilin.tensor([1.0, 2.0], requires_grad=True)
    y = plain("multiply")(w, resilin.tensor([3.0, 4.0]))
    assert y.requires_grad
    assert y.grad_fn.op is OPS["multiply"]
    y.sum().backward()
    assert w.grad.tolist() == [3, 4]
    with resilin.no_grad():
        assert not plain("multiply")(w, w).requires_grad
    assert not plain("greater")(w, w).requires_grad


def test_views_share_memory_and_version() -> None:
    x = resilin.zeros(2, 3)
    y = plain("reshape")(x, (6,))
    y += 1
    assert x.tolist() == [[1, 1, 1]] * 2
    assert x._version == y._version == 1
    z = plain("reshape")(x.t(), (6,))  # the strides do not allow a view
    z += 1
    assert x._version == 1


def test_a_write_into_a_view_that_it_made_reaches_the_base() -> None:
    w = resilin.tensor([1.0, 2.0], requires_grad=True)
    base = resilin.zeros(2, 2)
    view = plain("swapaxes")(base, 0, 1)
    view[0] = w
    base.sum().backward()
    assert w.grad.tolist() == [1, 1]


def test_views_of_views_know_their_base() -> None:
    w = resilin.ones(4, requires_grad=True)
    x = w * 1
    part = plain("reshape")(plain("reshape")(x, (2, 2)), (4, 1))
    part.mul_(3)
    x.sum().backward()
    assert w.grad.tolist() == [3, 3, 3, 3]


def test_views_made_without_recording_refuse_recorded_writes() -> None:
    base = resilin.ones(2, requires_grad=True) * 1
    with resilin.no_grad():
        view = plain("reshape")(base, (2, 1))
    with pytest.raises(RuntimeError, match="created in no_grad"):
        view.mul_(2)


def test_tensors_made_in_inference_mode_are_inference_tensors() -> None:
    with resilin.inference_mode():
        assert plain("add")(resilin.ones(2), 1).is_inference()
        assert resilin.ones(2).view(2, 1).is_inference()


def test_inference_mode_of_one_thread_is_not_that_of_another() -> None:
    found = []

    def run() -> None:
        found.append(plain("add")(resilin.ones(2), 1).is_inference())

    with resilin.inference_mode():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert found == [False]


def test_scalars_of_numpy_become_tensors_without_dimensions() -> None:
    y = plain("add")(resilin.tensor(1.0), resilin.tensor(2.0))
    assert type(y._array) is np.ndarray
    assert y.shape == ()


def test_half_precision_is_rounded_once() -> None:
    x = resilin.tensor([1.0, 3.0], dtype=resilin.bfloat16)
    assert plain("divide")(x, x + 0.5).dtype is resilin.bfloat16
    assert plain("exp")(x).dtype is resilin.bfloat16


def test_errors_have_the_text_of_the_way_in_python() -> None:
    with pytest.raises(RuntimeError, match=r"add: the shapes \(2,\) and \(3,\) cannot be broadcast"):
        resilin.ones(2) + resilin.ones(3)
    with pytest.raises(TypeError, match="takes 3 arguments, got 4"):
        OPS["sum"].call(resilin.ones(2), 0, True, 1)


def test_other_errors_pass_as_they_are() -> None:
    class Stopped(Exception):
        """Nothing that an array library raises."""

    def stop(xp: Any, x: Any) -> Any:
        raise Stopped

    op = type(OPS["exp"])("stop", stop, {})
    with pytest.raises(Stopped):
        op.call(resilin.ones(2))


def test_an_implementation_that_comes_later_is_used() -> None:
    op = type(OPS["exp"])("later", lambda xp, x: x + 1, {})
    assert op.call(resilin.ones(1)).item() == 2
    op.override("cpu", lambda xp, x: x + 2, lambda xp, needs, g, _y, _x: (g,))
    assert op.call(resilin.ones(1)).item() == 3
    op.override("cpu", lambda xp, x: (x + 3, None), lambda xp, needs, g, _y, _residual, _x: (g,), residual=True)
    assert op.call(resilin.ones(1)).item() == 4


def test_nothing_is_kept_alive() -> None:
    x = resilin.ones(1000)
    y = plain("reshape")(x, (10, 100))
    alive = weakref.ref(x), weakref.ref(y)
    del x, y
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_reference_counts_stay() -> None:
    a, one = resilin.ones(3), 1.5
    add, counted = plain("add"), [a, one, a._array, a._dev]

    def counts() -> list[int]:
        return [sys.getrefcount(x) for x in counted]

    add(a, one)
    before = counts()
    for _ in range(1000):
        add(a, one)
        add(a, "x")
    assert counts() == before
