"""In-place writes: versions, views, history."""

from typing import Any

import numpy as np
import pytest

import resilin


def leaf(*values):
    return resilin.tensor(values, requires_grad=True)


def test_views_share_memory_and_version():
    x = resilin.zeros(2, 3)
    views = [x.view(6), x.t(), x[0], x[:, 1:], x.unsqueeze(0), x.expand(2, 2, 3), x.detach()]
    x.add_(1)
    assert all(np.shares_memory(v.numpy(), x.numpy()) for v in views)
    assert {v._version for v in views} == {1}
    assert x.reshape(3, 2)._version == 1
    assert x.t().reshape(6)._version == 0, "this reshape had to copy"


def test_modifying_a_saved_tensor_is_an_error_in_backward():
    x = leaf(1.0, 2.0)
    y = x * 1
    z = (y * y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_modifying_a_saved_output_through_a_view_is_an_error_in_backward():
    y = leaf(1.0, 2.0).exp()
    y[0].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_tensor_that_no_rule_reads_may_be_modified():
    x = leaf(1.0, 2.0)
    y = x * 3
    z = y + 1
    y.zero_()
    z.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 3.0)


def test_a_leaf_that_requires_gradients_is_protected():
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="view of a leaf"):
        x[0].mul_(2)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x[0] = 1.0
    with resilin.no_grad():
        x.add_(1)
    assert x.tolist() == [2.0, 3.0]
    assert x.is_leaf


def test_in_place_operations_are_differentiated():
    x = leaf(1.0, 2.0)
    y = (x * 1).mul_(3).add_(x).exp_()
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 4 * np.exp([4.0, 8.0]), rtol=1e-6)


def test_writing_a_view_changes_the_history_of_its_base_and_its_other_views():
    x = leaf(1.0, 2.0, 3.0, 4.0)
    base = x * 1
    first, square = base[:2], base.view(2, 2)
    first.mul_(5)
    (base.sum() + square.sum()).backward()
    np.testing.assert_allclose(x.grad.numpy(), [10.0, 10.0, 2.0, 2.0])


def test_writing_the_base_changes_the_history_of_its_views():
    x = leaf(1.0, 2.0, 3.0)
    base = x * 1
    tail = base[1:]
    base.mul_(x)
    tail.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.0, 4.0, 6.0])


def test_assigning_into_a_constant_makes_it_part_of_the_graph():
    x = leaf(1.0, 2.0)
    out = resilin.zeros(4)
    view = out[1:3]
    out[1:3] = x * 2
    assert out.requires_grad
    assert view.requires_grad
    (out * resilin.arange(4.0)).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [2.0, 4.0])


def test_assigning_cuts_the_gradient_of_what_was_there():
    x = leaf(1.0, 2.0, 3.0)
    y = x * 2
    y[resilin.tensor([0, 2])] = 0.0
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.0, 2.0, 0.0])


def test_second_derivatives_pass_through_a_written_view():
    x = resilin.tensor([1.0, 2.0, 3.0], dtype=resilin.float64, requires_grad=True)

    def fn(t):
        y = t * t
        y[1:].mul_(t[0])
        return (y * y).sum()

    assert resilin.autograd.gradcheck(fn, x)
    assert resilin.autograd.gradgradcheck(fn, x)


def test_in_place_results_must_fit_dtype_and_shape():
    with pytest.raises(RuntimeError, match="can't be cast"):
        resilin.tensor([1, 2]).add_(1.5)
    with pytest.raises(RuntimeError, match="broadcast shape"):
        resilin.ones(2).add_(resilin.ones(3, 2))


def test_an_expanded_tensor_refuses_writes():
    with pytest.raises(RuntimeError, match="single memory location"):
        resilin.ones(1).expand(3).add_(1)


def test_writes_to_data_are_not_noticed_by_the_version():
    x = resilin.ones(2)
    x.data.mul_(3)
    assert x._version == 0
    assert x.tolist() == [3.0, 3.0]


def test_every_holder_of_a_memory_counts_the_writes_of_all():
    x = resilin.ones(2)
    x.add_(1)
    holders = [x, x.data, x.data.data, x.detach(), x[:1], resilin.nn.Parameter(x), x.data.view(2, 1)]
    with resilin.no_grad():
        for holder in holders:
            before = [other._writes for other in holders]
            holder.mul_(2)
            assert all(other._writes > count for other, count in zip(holders, before, strict=True))
    assert x._version == 4, "its own write, and those of itself, of detach() and of its view"


def test_another_data_is_a_write_and_its_former_holder_writes_here_from_then_on():
    x, y = resilin.ones(2), resilin.zeros(2)
    y.add_(1)
    before = x._writes, x._version
    x.data = y
    assert x._writes > before[0]
    assert x._version == before[1]
    before = x._writes
    y.add_(1)
    assert x._writes > before
    before = x._writes
    x.data = x.data
    assert x._writes == before, "the same memory"


def test_overwriting_keeps_the_tensor_in_the_graph_with_a_zero_gradient_for_what_was_there():
    x = leaf(1.0, 2.0)
    for write in (lambda t: t.zero_(), lambda t: t.fill_(3), lambda t: t.copy_(resilin.ones(2))):
        y = x * 2
        write(y)
        assert y.requires_grad
        y.sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), 0)
        x.grad = None


def test_an_in_place_rule_reads_the_value_before_the_write():
    x, w = leaf(2.0, 3.0), leaf(5.0, 7.0)
    y = x * 1
    y.mul_(w)
    y.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), [2.0, 3.0])
    np.testing.assert_allclose(x.grad.numpy(), [5.0, 7.0])


def test_writes_under_no_grad_leave_a_tensors_place_in_the_graph_alone():
    p, c = leaf(1.0, 2.0), leaf(3.0, 4.0)
    computed = c * 2
    node = computed.grad_fn
    with resilin.no_grad():
        for t in (p, computed):
            t.mul_(2).add_(1).addcdiv_(t, t + 1).lerp_(t, 0.5).clamp_(0, 9).copy_(t * 2).exp_()
            t[0] = 7.0
            t[1:].zero_()
            t.normal_()
    assert p.requires_grad
    assert p.is_leaf
    assert computed.grad_fn is node


_WRITES = {
    "mul_": lambda v: v.mul_(2),
    "zero_": lambda v: v.zero_(),
    "copy_": lambda v: v.copy_(resilin.tensor([5.0])),
    "setitem": lambda v: v.__setitem__(0, 1.0),
    "of a view of it": lambda v: v.view(-1).mul_(2),
}


@pytest.mark.parametrize("write", _WRITES.values(), ids=_WRITES)
@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("made_in", [resilin.no_grad, resilin.inference_mode])
def test_a_view_made_under_no_grad_cannot_be_written_where_backward_would_miss_it(write, leaf, made_in):
    a = resilin.tensor([1.0, 2.0], requires_grad=True)
    x = a if leaf else a * 1
    with made_in():
        v = x[:1]
    with pytest.raises(RuntimeError, match="created in no_grad mode"):
        write(v)
    assert x.tolist() == [1, 2]
    assert not v.requires_grad
    with resilin.no_grad():
        write(v)
    assert x.tolist()[0] == v.item() != 1 or write is _WRITES["setitem"]


def test_a_view_made_under_no_grad_may_be_written_where_nothing_is_differentiated():
    x = resilin.tensor([1.0, 2.0])
    with resilin.no_grad():
        v = x[:1]
    v.mul_(3)
    assert x.tolist() == [3, 2]
    with pytest.raises(RuntimeError, match="created in no_grad mode"):
        v.mul_(resilin.tensor([2.0], requires_grad=True))


def test_a_view_made_under_no_grad_stays_a_constant_when_its_base_is_written():
    x = resilin.zeros(2)
    with resilin.no_grad():
        v = x[:1]
    x.mul_(resilin.ones(2, requires_grad=True))
    assert x.requires_grad
    assert not v.requires_grad


def test_a_diagonal_is_written_through_with_gradients():
    a = resilin.ones(2, 2, requires_grad=True)
    x = a * 1
    x.diagonal().mul_(3)
    x.diagonal()[0] = 7
    assert x.tolist() == [[7, 1], [1, 3]]
    (x * x).sum().backward()
    assert a.grad.tolist() == [[0, 2], [2, 18]]


def test_one_row_of_an_expanded_tensor_is_written_through_with_gradients():
    a = resilin.ones(1, 3, requires_grad=True)
    x = a * 1
    rows = x.expand(2, 3)
    rows[0].mul_(3)
    assert (x.tolist(), rows.tolist()) == ([[3] * 3], [[3] * 3] * 2)
    (x * x).sum().backward()
    assert a.grad.tolist() == [[18] * 3]


def test_only_memory_that_is_read_only_is_called_so():
    frozen = np.zeros((2, 2))
    frozen.flags.writeable = False
    for x in (resilin.from_numpy(frozen), resilin.from_numpy(frozen).diagonal()):
        with pytest.raises(RuntimeError, match="read-only"):
            x.add_(1)
    with pytest.raises(RuntimeError, match="single memory location"):
        resilin.zeros(1, 3).expand(2, 3).diagonal(0, 0, 1).unsqueeze(0).expand(3, 2).add_(1)


@pytest.mark.parametrize("arguments", [(), (2, 3)])
@pytest.mark.parametrize("name", ["add_", "mul_", "sub_", "div_"])
def test_arithmetic_in_place_takes_one_operand(name, arguments):
    x = resilin.ones(2)
    with pytest.raises(TypeError):
        getattr(x, name)(*arguments)
    assert x.tolist() == [1, 1]


def test_integers_that_are_given_floats_with_gradients_have_none():
    x, y = resilin.tensor([1, 2]), resilin.tensor([0.5, 1.5], requires_grad=True)
    x.copy_(y)
    assert x.tolist() == [0, 1]
    assert not x.requires_grad
    assert x.is_leaf


def _clipped_in_place(look: Any) -> tuple[Any, Any, Any]:
    """A recorded tensor that hardtanh_ wrote, whose rule reads what was there; and what `look` kept of it before."""
    w = resilin.tensor([-3.0, -0.5, 0.5, 3.0], requires_grad=True)
    x = w * 2
    kept = look(x)
    resilin.nn.functional.hardtanh_(x, -2.0, 2.0)
    x.sum().backward()
    assert w.grad.tolist() == [0, 2, 2, 0]
    assert x.tolist() == [-2, -1, 1, 2]
    return w, x, kept


@pytest.mark.parametrize(
    "look",
    [lambda x: x.detach(), lambda x: x.detach().numpy(), lambda x: x[1:], lambda x: x.view(2, 2), lambda x: x.data],
)
def test_whoever_knows_the_memory_of_a_recorded_tensor_sees_it_written_in_place(look: Any) -> None:
    _, _, kept = _clipped_in_place(look)
    last = kept.reshape(-1)[-1]
    assert last == 2


def test_in_place_without_the_value_that_its_rule_reads_being_copied() -> None:
    told: list[Any] = []
    _, x, _ = _clipped_in_place(lambda x: told.append(id(x._array)))
    assert id(x._array) != told[0]
    w = resilin.ones(3, requires_grad=True)
    x = w * 2
    saved = x * x  # reads x later on
    resilin.nn.functional.hardtanh_(x, -1.0, 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
