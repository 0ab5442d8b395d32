"""Indices, masks and classes may be written to between forward and backward: gradients are of the forward."""

import numpy as np
import pytest

import resilin
from resilin.nn import functional as F

ZEROS = resilin.zeros(2, 3, dtype=resilin.float64)
INDEX = [[0, 1, 1], [1, 0, 0]]
MASK = [[True, False, True], [False, True, True]]

FUNCTIONS = {
    "gather": (INDEX, lambda x, i: x.gather(0, i)),
    "scatter": (INDEX, lambda x, i: ZEROS.scatter(0, i[:1], x[:1])),
    "scatter_add": (INDEX, lambda x, i: ZEROS.scatter_add(0, i, x)),
    "scatter_reduce": (INDEX, lambda x, i: (ZEROS + 1).scatter_reduce(0, i, x, "prod")),
    "take_along_dim": (INDEX, lambda x, i: resilin.take_along_dim(x, i, 0)),
    "index_select": ([1, 1], lambda x, i: x.index_select(0, i)),
    "index_add": ([1, 1], lambda x, i: ZEROS.index_add(0, i, x)),
    "index_copy": ([1, 0], lambda x, i: ZEROS.index_copy(0, i, x)),
    "index_fill": ([1], lambda x, i: x.index_fill(0, i, 0.0)),
    "index_put": ([1, 0], lambda x, i: ZEROS.index_put((i,), x)),
    "index_put accumulate": ([1, 1], lambda x, i: ZEROS.index_put((i,), x, accumulate=True)),
    "index_reduce": ([1, 1], lambda x, i: (ZEROS + 1).index_reduce(0, i, x, "amax")),
    "getitem": ([1, 1], lambda x, i: x[i]),
    "getitem, two": ([1, 0], lambda x, i: x[i, i]),
    "getitem, mask": (MASK, lambda x, m: x[m]),
    "setitem": ([1], lambda x, i: _assigned(x, i)),
    "masked_fill": (MASK, lambda x, m: x.masked_fill(m, 0.0)),
    "where": (MASK, lambda x, m: resilin.where(m, x, 2 * x)),
    "where a number": (MASK, lambda x, m: resilin.where(m, x, 1.0)),
    "take": ([1, 2], lambda x, i: x.take(i)),
    "put": ([0, 1, 2, 3, 4, 5], lambda x, i: resilin.zeros(9, dtype=x.dtype).put(i, x)),
    "embedding": ([1, 1], lambda x, i: F.embedding(i, x)),
    "nll_loss": ([1, 2], lambda x, i: F.nll_loss(x, i)),
    "cross_entropy": ([1, 2], lambda x, i: F.cross_entropy(x, i)),
    "cross_entropy weight": (np.array([0.5, 0.25, 2.0]), lambda x, w: F.cross_entropy(x, resilin.tensor([1, 2]), w)),
}


def _assigned(x, i):
    y = x * 1
    y[i] = x[:1] * 3
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_do_not_follow_what_is_written_to_an_index_after_the_forward(name):
    given, function = FUNCTIONS[name]
    x = resilin.tensor([[0.5, 2.0, 3.0], [1.0, -2.0, 4.0]], dtype=resilin.float64, requires_grad=True)
    index = resilin.tensor(given)
    y = function(x * 1, index)
    (before,) = resilin.autograd.grad((y * y).sum(), x, retain_graph=True)
    assert before.abs().sum().item() > 0
    if index.dtype is resilin.bool:
        index.logical_not_()
    else:
        index.zero_()
    (after,) = resilin.autograd.grad((y * y).sum(), x)
    np.testing.assert_array_equal(after.numpy(), before.numpy())


def test_labels_of_ctc_may_be_written_before_backward():
    x = resilin.zeros(4, 1, 3, dtype=resilin.float64, requires_grad=True)
    labels = resilin.tensor([[1]])
    loss = F.ctc_loss(x.log_softmax(2), labels, (4,), (1,))
    (before,) = resilin.autograd.grad(loss, x, retain_graph=True)
    labels.fill_(2)
    (after,) = resilin.autograd.grad(loss, x)
    np.testing.assert_array_equal(after.numpy(), before.numpy())
