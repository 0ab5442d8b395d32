"""The walk of a backward in native code gives what the one in Python gives, bit for bit, and raises what it raises."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.autograd import engine
from resilin.core.kernels.loader import native
from resilin.core.ops.lazy_gradients import Product

F = resilin.nn.functional
pytestmark = pytest.mark.skipif(native is None, reason="compares native code with Python: without it there is one walk")


@pytest.fixture(params=["native", "Python"])
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Python":
        _walk_in_python(monkeypatch)
    return str(request.param)


def _walk_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_walk_natively", None)
    monkeypatch.setattr(engine, "_reachable", engine._reachable_nodes)


def _leaves() -> list[Any]:
    resilin.manual_seed(3)
    shapes = ((4, 6), (6, 6), (6,), (1, 6), ())
    return [resilin.randn(shape, requires_grad=True) for shape in shapes]


def _shared(x: Any, w: Any, b: Any, row: Any, one: Any) -> Any:
    """Leaves and nodes used several times, broadcasting, parts, an input that needs no gradient."""
    h = F.linear(x, w, b).relu()
    h = h * row + one + h.exp().sqrt()
    left, right = h.chunk(2, 1)
    return (left * right).sum() + (w @ w).mean() + h[1:3].sum() + (h * resilin.ones(6)).max() + one


def _losses(x: Any, w: Any, b: Any, row: Any, one: Any) -> Any:
    scores = F.layer_norm(F.linear(x, w, b), (6,)) * one
    return (
        F.cross_entropy(scores, resilin.tensor([1, 5, 0, 2])) + F.mse_loss(scores, row.expand(4, 6)) + b.double().sum()
    )


def _several_outputs(x: Any, w: Any, b: Any, row: Any, one: Any) -> Any:
    values, _ = (x @ w).sort(1)
    top, _ = values.topk(2, 1)
    return top.sum() + sum(part.prod() for part in values.unbind(0)) * one + (row * b).norm()


PROGRAMS: list[Callable[..., Any]] = [_shared, _losses, _several_outputs]


def _gradients(program: Callable[..., Any], backwards: int) -> list[bytes]:
    leaves = _leaves()
    out = program(*leaves)
    for turn in range(backwards):
        out.backward(retain_graph=turn < backwards - 1)
    return [b"" if leaf.grad is None else leaf.grad.numpy().tobytes() for leaf in leaves]


@pytest.mark.parametrize("backwards", [1, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_both_walks_give_the_same_bits(
    program: Callable[..., Any], backwards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _gradients(program, backwards)
    _walk_in_python(monkeypatch)
    assert _gradients(program, backwards) == found
    assert sum(map(bool, found)) >= 4


@pytest.mark.parametrize("program", PROGRAMS)
def test_both_walks_give_chosen_inputs_the_same_bits(
    program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[Any]:
        leaves = _leaves()
        given = resilin.autograd.grad(program(*leaves), leaves[1:4], allow_unused=True)
        assert all(leaf.grad is None for leaf in leaves)
        return [None if g is None else g.numpy().tobytes() for g in given]

    ours = found()
    _walk_in_python(monkeypatch)
    assert found() == ours


def test_a_gradient_that_nobody_else_holds_becomes_the_leafs_and_a_shared_one_is_copied(walk: str) -> None:
    a, b = resilin.ones(3, requires_grad=True), resilin.ones(3, requires_grad=True)
    (a + b).backward(resilin.ones(3))
    a.grad.add_(1)
    assert b.grad.tolist() == [1, 1, 1]


def test_the_gradient_that_backward_was_given_stays_its_owners(walk: str) -> None:
    a, given = resilin.ones(3, requires_grad=True), resilin.ones(3)
    (a + 0).backward(given)
    a.grad.mul_(5)
    assert given.tolist() == [1, 1, 1]


def test_hooks_of_leaves_tensors_and_nodes_run_in_the_same_order(walk: str) -> None:
    told: list[str] = []
    x, w = resilin.ones(2, requires_grad=True), resilin.ones(2, requires_grad=True)
    h = x * w
    h.register_hook(lambda g: told.append("h"))
    y = (h * 2).sum()
    assert y.grad_fn is not None
    handle = y.grad_fn.register_hook(lambda inputs, outputs: told.append("sum"))
    x.register_hook(lambda g: g * 10)
    w.register_post_accumulate_grad_hook(lambda leaf: told.append("w"))
    y.backward()
    handle.remove()
    assert told == ["sum", "h", "w"]
    assert x.grad.tolist() == [20, 20]


def test_a_hook_may_ask_for_anomalies_in_the_middle_of_a_walk(walk: str) -> None:
    x = resilin.zeros(2, requires_grad=True)
    root = (x * 1).sqrt()
    out = (root * resilin.tensor([0.0, 1.0])).sum()
    modes: list[Any] = []

    def watch(g: Any) -> None:
        modes.append(resilin.autograd.detect_anomaly())
        modes[0].__enter__()

    root.register_hook(watch)
    try:
        with pytest.raises(RuntimeError, match="returned nan"):
            out.backward()
    finally:
        modes[0].__exit__(None, None, None)


def test_what_was_saved_and_written_since_is_refused(walk: str) -> None:
    w = resilin.ones(3, requires_grad=True)
    factor = resilin.ones(3)
    y = w * factor
    factor.add_(1)
    with pytest.raises(
        RuntimeError, match=r"modified by an inplace operation: .* saved by MulBackward0 at version 0 is"
    ):
        y.sum().backward()
    z = w.exp()
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_second_backward_is_refused(walk: str) -> None:
    w = resilin.ones(3, requires_grad=True)
    y = (w * w).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_an_error_of_a_rule_names_the_node_and_what_does_not_fit(walk: str) -> None:
    w = resilin.ones(2, 3, requires_grad=True)
    factor = resilin.ones(2, 3)
    y = (w * factor).sum(1)
    factor._array = np.ones((5, 7), np.float32)  # as data whose owner has resized it
    with pytest.raises(RuntimeError, match=r"does not fit its gradient of shape|whose data was replaced"):
        y.sum().backward()


def test_interrupts_leave_a_walk_as_they_are(walk: str) -> None:
    w = resilin.ones(3, requires_grad=True)

    def interrupt(g: Any) -> None:
        raise KeyboardInterrupt

    h = w * 2
    h.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        (h * 3).sum().backward()
    (w * 2).sum().backward()
    assert w.grad.tolist() == [2, 2, 2]


def test_an_error_while_a_leafs_gradient_is_computed_is_raised_as_it_is(
    walk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, x = resilin.ones(3, 4, requires_grad=True), resilin.ones(5, 4)

    def whole(self: Product) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Product, "whole", whole)
        loss = F.linear(x, w).sum()
        with pytest.raises(MemoryError, match="no room"):
            loss.backward()
    F.linear(x, w).sum().backward()
    assert w.grad.tolist() == [[5.0] * 4] * 3


def test_backwards_of_several_threads_add_up_at_small_leaves(walk: str) -> None:
    w = resilin.ones(3, requires_grad=True)

    def work() -> None:
        for _ in range(200):
            (w * 2).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert w.grad.tolist() == [1600, 1600, 1600]


def test_a_walk_reaches_each_node_once_however_often_it_is_used(walk: str) -> None:
    w = resilin.ones(1, requires_grad=True)
    x = w * 1
    for _ in range(40):  # 2 ** 40 ways to w
        x = (x + x) * 0.5
    x.sum().backward()
    assert w.grad.tolist() == [1]
