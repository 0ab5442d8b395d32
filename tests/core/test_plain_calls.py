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
from resilin.core.autograd import tape
from resilin.core.kernels.loader import native
from resilin.core.ops import calling
from resilin.core.ops.registry import OPS
from resilin.core.state import inplace

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


def test_a_sequence_of_tensors_of_one_dtype_is_taken() -> None:
    a = resilin.tensor([1.0, 2.0])
    assert plain("concat")([a, a], 0, (2, 2)).tolist() == [1, 2, 1, 2]
    assert plain("stack")((a, resilin.nn.Parameter(a))).shape == (2, 2)


@pytest.mark.parametrize(
    "tensors",
    [
        lambda a: [],
        lambda a: [a, resilin.tensor([1, 2])],  # promoted
        lambda a: [a, 1.0],
        lambda a: [a, a.as_subclass(Mine)],
        lambda a: [a, a.to("sim:1")],
        lambda a: iter([a, a]),
        lambda a: [a, resilin.ones(2, 2)],  # an error, said by the way in Python
        lambda a: a,
    ],
)
def test_other_sequences_are_left_to_the_way_in_python(tensors: Any) -> None:
    assert plain("concat")(tensors(resilin.tensor([1.0, 2.0])), 0, ()) is None


def test_an_op_calls_the_way_in_python_for_what_is_left() -> None:
    add = OPS["add"].call
    assert type(add) is native.PlainCall
    assert add(resilin.tensor([1, 2]), 1.5).tolist() == [2.5, 3.5]
    assert OPS["sum"].call(resilin.ones(2, 3), axis=1).tolist() == [3, 3]
    assert add.__name__ == "add"
    assert add.__doc__ == "a + b."


def _written(method: Any, make: Any) -> Any:
    """What an in-place method does to a new tensor with `make`'s operand: the outcome, the elements, their version."""
    base = resilin.arange(1.0, 7.0).reshape(2, 3)
    target, other = make(base)
    try:
        found = method(target, other)
        outcome = "itself" if found is target else "another"
    except (RuntimeError, TypeError, OverflowError) as error:
        outcome = f"{type(error).__name__}: {error}"
    return outcome, base.tolist(), base._version, target.detach().tolist(), target._version, target._writes


def _with_writes_through_data(base: resilin.Tensor) -> tuple[resilin.Tensor, Any]:
    base.data.add_(1)
    return base, 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda base: (base, base),
        lambda base: (base, 2),
        lambda base: (base, 1.5),
        lambda base: (base, True),
        lambda base: (base, 1j),
        lambda base: (base, resilin.ones(3)),
        lambda base: (base, resilin.ones(2, 1)),
        lambda base: (base, resilin.ones(4)),
        lambda base: (base, resilin.ones(1, 2, 3)),
        lambda base: (base, resilin.ones(2, 3, dtype=resilin.float64)),
        lambda base: (base, resilin.ones(3, dtype=resilin.int64)),
        lambda base: (base, "1"),
        lambda base: (base, 10**400),
        lambda base: (base[1:], 1),
        lambda base: (base.t(), resilin.ones(2)),
        lambda base: (base, base.expand(2, 3)),
        lambda base: (base[:1].expand(2, 3), 1.0),
        lambda base: (base.to(resilin.bfloat16), 1.0),
        lambda base: (base.long(), 1),
        lambda base: (base.long(), 1.5),
        lambda base: (base.long(), True),
        lambda base: (base.long(), 2**70),
        lambda base: (base.long(), base.long()),
        lambda base: (base.long()[:, ::2], base.long()[:, 1:]),
        lambda base: (base.long(), base),
        lambda base: (base.char(), 300),
        lambda base: (base.byte(), -1),
        lambda base: (base.bool(), 1),
        lambda base: (base.requires_grad_(), 1.0),
        lambda base: (base.detach(), resilin.ones(3, requires_grad=True)),
        lambda base: (base.as_subclass(Mine), 1.0),
        lambda base: (resilin.nn.Parameter(base), 1.0),
        lambda base: (resilin.nn.Parameter(base, requires_grad=False), 1.0),
        _with_writes_through_data,
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", ["add", "div"])
def test_writes_in_place_are_those_of_the_way_in_python(name: str, recorded: bool, make: Any) -> None:
    method = inplace.make(getattr(resilin.Tensor, name), name + "_", {"add": np.add, "div": np.divide}[name])
    assert type(method) is native.InPlaceCall
    with resilin.set_grad_enabled(recorded):
        assert _written(method, make) == _written(method.__wrapped__, make)


_ALONE: list[Any] = [
    lambda base: (base, None),
    lambda base: (base[1:], None),
    lambda base: (base.t(), None),
    lambda base: (base[:1].expand(2, 3), None),
    lambda base: (base.to(resilin.bfloat16), None),
    lambda base: (base.to(resilin.float16), None),
    lambda base: (base.long(), None),
    lambda base: (base.requires_grad_(), None),
    lambda base: ((base.requires_grad_() * 1)[1:], None),
    lambda base: (base.as_subclass(Mine), None),
    lambda base: (resilin.nn.Parameter(base), None),
    _with_writes_through_data,
]


@pytest.mark.parametrize("make", _ALONE)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", ["neg_", "sqrt_", "relu_", "zero_"])
def test_writes_of_one_tensor_are_those_of_the_way_in_python(name: str, recorded: bool, make: Any) -> None:
    method = getattr(resilin.Tensor, name).__wrapped__
    assert type(method) in (native.InPlaceCall, native.WriteCall)
    with resilin.set_grad_enabled(recorded):
        written = [_written(lambda x, _other, run=run: run(x), make) for run in (method, method.__wrapped__)]
    assert written[0] == written[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda base: (base, base + 1),
        lambda base: (base, base),
        lambda base: (base, resilin.ones(3)),
        lambda base: (base, resilin.ones(3, 2).t()),
        lambda base: (base, resilin.ones(2, 3, dtype=resilin.float64)),
        lambda base: (base, resilin.ones(4)),
        lambda base: (base, 2.0),
        lambda base: (base, "1"),
        lambda base: (base[:, 1:], base[:, :-1]),  # which overlap
        lambda base: (base.detach(), resilin.ones(2, 3, requires_grad=True)),
        lambda base: (base.requires_grad_(), resilin.ones(2, 3)),
        lambda base: (base, resilin.ones(2, 3).to("sim:1")),
        lambda base: (base[:1].expand(2, 3), resilin.ones(2, 3)),
        lambda base: (base.as_subclass(Mine), resilin.ones(2, 3)),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_copies_are_those_of_the_way_in_python(recorded: bool, make: Any) -> None:
    method = resilin.Tensor.copy_.__wrapped__
    with resilin.set_grad_enabled(recorded):
        assert _written(method, make) == _written(method.__wrapped__, make)


@pytest.mark.parametrize("other", [5, -5, 127, 128, -129, 300, 2**40, 2**70, True, 1.5])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("name", ["add", "multiply", "equal", "power", "floor_divide"])
def test_numbers_beside_integers_are_those_of_the_way_in_python(name: str, dtype: str, other: Any) -> None:
    x = resilin.tensor([0, 1, 3]).to(getattr(resilin, dtype))
    outcomes = []
    for run in (OPS[name].call, OPS[name].call.__wrapped__):
        try:
            found = run(x, other)
            outcomes.append((found.dtype, found.tolist()))
        except (RuntimeError, OverflowError, NotImplementedError) as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
def test_bits_are_numpys(name: str) -> None:
    run = getattr(resilin, name if name.startswith("bitwise") else f"bitwise_{name}")
    x, y = np.array([[0, 1, -3], [5, 200, 7]]), np.array([[1, 2, 3], [4, 5, 6]])
    for a, b in ((x, y), (x.T, y.T), (x, 3), (x[:, ::2], y[:, ::2]), (x.astype("i4"), y.astype("i4")), (x, y[0])):
        given = [resilin.tensor(value) if isinstance(value, np.ndarray) else value for value in (a, b)]
        np.testing.assert_array_equal(run(*given).numpy(), getattr(np, name)(a, b))


def _of_view(view: Any) -> Any:
    return view._view.base, view._view.chain, view._view.seen, view._view.recorded, view._vc


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_views_of_views_are_marked_as_in_python(grad: bool, recorded: bool) -> None:
    base = resilin.ones(4, 6, requires_grad=grad) * 1
    with resilin.set_grad_enabled(recorded):
        first = base[1:]
    for index in (slice(0, 2), 1, (slice(None), slice(1, 4))):
        call = OPS["getitem"].call
        assert _of_view(call(first, index)) == _of_view(call.__wrapped__(first, index))


def test_what_a_view_op_had_to_copy_is_no_view() -> None:
    x = resilin.ones(2, 3).t()
    assert plain("reshape")(x, (6,))._view is None
    assert plain("getitem")(x, np.array([0, 1]))._view is None
    assert plain("astype")(x, np.dtype(np.float64))._view is None


def test_ops_on_views_outside_of_the_graph_and_in_it_are_recorded_as_in_python() -> None:
    leaf = resilin.ones(3, 4, requires_grad=True)
    with resilin.no_grad():
        unrecorded = leaf[1:]
    assert not plain("exp")(unrecorded).requires_grad
    assert not plain("exp")(resilin.ones(3, 4)[1:]).requires_grad
    base = leaf * 2
    view = base[1:]
    (first,) = resilin.autograd.grad(plain("square")(view).sum(), leaf, retain_graph=True)
    assert first.tolist() == [[0] * 4, [8] * 4, [8] * 4]
    base.mul_(3)  # which moves the view
    (second,) = resilin.autograd.grad(plain("square")(view).sum(), leaf)
    assert second.tolist() == [[0] * 4, [72] * 4, [72] * 4]


def test_tensors_of_inference_mode_are_not_written_outside_of_it() -> None:
    with resilin.inference_mode():
        x = resilin.ones(3)
        x += 1
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        x += 1


def test_writes_in_place_keep_nothing_alive() -> None:
    x, y = resilin.ones(3), resilin.ones(3)
    x += y
    before = [sys.getrefcount(value) for value in (x, y, x._array, x._vc)]
    for _ in range(1000):
        x += y
    assert [sys.getrefcount(value) for value in (x, y, x._array, x._vc)] == before


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


def _both_nodes(name: str, *arguments: Any) -> tuple[Any, Any, Any, Any]:
    """What the native way and the way in Python make of one call: results and their nodes."""
    op = OPS[name]
    fast = plain(name)(*arguments)
    tensors = arguments[0] if op.n < 0 else arguments[: op.n]
    params = (*arguments[max(op.n, 1) :], *op.defaults[len(arguments) :])
    slow = resilin.tensor(fast.detach().numpy())
    tape.record(op, op.impls.get("cpu", op.generic), slow, tensors, params, None)
    return fast, fast.grad_fn, slow, slow.grad_fn


W = resilin.ones(2, 3, requires_grad=True)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("multiply", (W, resilin.ones(2, 3))),
        ("multiply", (2.0, W)),
        ("add", (W, W)),
        ("exp", (W,)),
        ("relu", (W * 1,)),
        ("sum", (W, 1)),
        ("linear", (resilin.ones(4, 3), W, None)),
        ("linear", (resilin.ones(4, 3), W, resilin.ones(2, requires_grad=True))),
        ("concat", ((W, resilin.ones(1, 3), W), 0, (2, 1, 2))),
        ("stack", ((resilin.ones(2, 3), W), 1)),
    ],
)
def test_its_nodes_are_those_of_the_way_in_python(name: str, arguments: Any) -> None:
    plain(name)(*arguments)  # the first call of an implementation is recorded in Python
    fast, made, slow, expected = _both_nodes(name, *arguments)
    for field in tape.Node.__slots__:
        if field not in ("__weakref__", "seq", "y"):
            found, wanted = getattr(made, field), getattr(expected, field)
            assert _listed(found) == _listed(wanted), field
    assert made.seq < expected.seq
    assert (made.y is None) == (expected.y is None)
    if made.y is not None:
        assert made.y[0] is fast._array
        assert made.y[1] is fast._vc
        assert made.y[2] == expected.y[2]
    assert fast.requires_grad == slow.requires_grad is True


def _listed(value: Any) -> Any:
    return [id(x) if isinstance(x, resilin.Tensor) else x for x in value] if isinstance(value, tuple | list) else value


def test_a_write_after_it_saved_a_tensor_is_an_error_in_backward() -> None:
    x = resilin.ones(2)
    y = (W[:, :2] * x).sum() + (W * 1).exp_().sum()
    x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_the_writes_before_it_saved_a_tensor_count() -> None:
    w, x = resilin.ones(2, requires_grad=True), resilin.ones(2)
    x += 1
    plain("multiply")(w, x).sum().backward()
    assert w.grad.tolist() == [2, 2]


def test_tensors_of_inference_mode_cannot_be_saved() -> None:
    with resilin.inference_mode():
        x = resilin.ones(3)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        plain("multiply")(W, x)


def test_anomaly_mode_and_hooks_on_saved_tensors_see_its_nodes() -> None:
    with resilin.autograd.set_detect_anomaly(True):
        y = plain("multiply")(W, W)
    assert y.grad_fn.trace is not None
    packed = []
    with resilin.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        plain("multiply")(W, resilin.ones(3))
    assert len(packed) == 1


def test_recording_keeps_nothing_alive() -> None:
    w, x = resilin.ones(3, requires_grad=True), resilin.ones(3)
    multiply = plain("multiply")
    multiply(w, x)
    before = [sys.getrefcount(value) for value in (w, x, w._array)]
    for _ in range(1000):
        multiply(w, x)
    gc.collect()
    assert [sys.getrefcount(value) for value in (w, x, w._array)] == before
