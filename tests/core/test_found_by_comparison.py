"""What a comparison of random programs with PyTorch 2.13 found: each case is as small as it could be made."""

import pytest

import resilin
from resilin.nn import functional as F


def test_the_extreme_of_a_single_number_is_a_copy():
    x = resilin.tensor(2.0)
    x.max(0).values.zero_()
    x.min(0).values.zero_()
    assert x.item() == 2


def test_integers_that_are_given_floats_with_gradients_have_none():
    x, y = resilin.tensor([1, 2]), resilin.tensor([0.5, 1.5], requires_grad=True)
    x.copy_(y)
    assert x.tolist() == [0, 1]
    assert not x.requires_grad
    assert x.is_leaf


def test_linear_takes_a_weight_of_one_row():
    x, w = resilin.tensor([[1.0, 2], [3, 4]], requires_grad=True), resilin.tensor([1.0, -1], requires_grad=True)
    y = F.linear(x, w, resilin.tensor(0.5))
    assert y.tolist() == [-0.5, -0.5]
    y.sum().backward()
    assert x.grad.tolist() == [[1, -1], [1, -1]]
    assert w.grad.tolist() == [4, 6]


def test_the_divergence_of_negative_probabilities_is_nan():
    losses = F.kl_div(resilin.tensor([0.5, 0.5, 0.5]), resilin.tensor([-1.0, 0.0, 1.0]), reduction="none")
    assert losses[0].isnan()
    assert losses[1:].tolist() == [0, -0.5]


def test_the_sign_of_nan_is_zero_and_that_of_a_bool_itself():
    assert resilin.tensor([float("nan"), -2.0, 3.0]).sign().tolist() == [0, -1, 1]
    assert resilin.tensor([True, False]).sign().tolist() == [True, False]


def test_integers_and_bools_keep_or_widen_their_dtype():
    whole, flags = resilin.tensor([-3, 0, 3]), resilin.tensor([True, False])
    assert F.hardtanh(whole).tolist() == [-1, 0, 1]
    assert F.hardtanh(whole).dtype is resilin.int64
    assert flags.square().dtype is resilin.int64
    assert flags.clamp(-0.5, 0.5).dtype is resilin.float32


def test_bools_are_added_at_places_by_or():
    x = resilin.tensor([False, True, False])
    assert x.diag_embed().any(1).tolist() == [False, True, False]
    x.index_put_((resilin.tensor([0, 0]),), resilin.tensor([True, True]), accumulate=True)
    assert x.tolist() == [True, True, False]


def test_numbers_without_dimensions_are_scattered_into():
    x = resilin.tensor(3.0)
    at = resilin.tensor(0)
    assert [x.scatter_reduce(0, at, x, how).item() for how in ("sum", "prod", "mean", "amax")] == [6, 9, 3, 3]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: resilin.ones(3, 2) // resilin.ones(3, 3), RuntimeError),
        (lambda: resilin.ones(3) & resilin.ones(3), NotImplementedError),
        (lambda: resilin.tensor([True]) ^ 1.5, NotImplementedError),
        (lambda: resilin.ones(3).mT, RuntimeError),
    ],
)
def test_mistakes_raise_what_pytorch_raises(call, kind):
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.flip(0),
        lambda x: x.rot90(),
        lambda x: x.rot90(2),
        lambda x: resilin.einsum("ab->ab", x),
        lambda x: x.diff(n=0),
        lambda x: x.matrix_power(1),
    ],
)
def test_copies_share_no_memory_even_where_nothing_is_moved(function):
    x = resilin.ones(1, 1)
    function(x).zero_()
    assert x.item() == 1


def test_a_product_without_dimensions_can_be_written():
    assert resilin.tensordot(resilin.tensor(1.5), resilin.tensor(2.0), 0).add_(1).item() == 4


def test_gradients_of_nan_stop_at_a_limit_and_at_the_smaller():
    for function in (lambda t: t.clamp(-0.5, 0.5), lambda t: resilin.maximum(t, resilin.zeros(2)), lambda t: t.relu()):
        x = resilin.tensor([-2.0, 0.25], requires_grad=True)
        function(x).backward(resilin.tensor([float("nan"), 1.0]))
        assert x.grad.tolist() == [0, 1]


def test_negative_powers_of_whole_tensors_are_rounded_to_zero():
    a, b = resilin.tensor([1, -1, -1, 2, 0, 3]), resilin.tensor([-1, -1, -2, -1, -3, 2])
    assert (a**b).tolist() == [1, -1, 1, 0, 0, 9]
    assert (1**b).tolist() == [1] * 6
    with pytest.raises(RuntimeError, match="negative integer powers"):
        a**-1


def test_the_covariance_of_one_variable_is_a_number():
    assert resilin.cov(resilin.tensor([[1.0, 2, 3]])).shape == ()


@pytest.mark.parametrize("leave", [lambda x: x.detach_(), lambda x: x.requires_grad_(False)])
def test_a_leaf_that_left_the_graph_gets_no_gradient(leave):
    x, w = resilin.ones(2, requires_grad=True), resilin.ones(2, requires_grad=True)
    y = (x * w).sum()
    leave(x)
    y.backward()
    assert x.grad is None
    assert w.grad.tolist() == [1, 1]
