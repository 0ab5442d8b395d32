"""ctc_loss: against the sum over all alignments, and its gradient after log_softmax against finite differences."""

import itertools
import math

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin.core.autograd.gradcheck import gradcheck

LENGTHS = [[], [1], [1, 2], [2, 2], [1, 2, 1]]


def logits(*shape, seed=0):
    return resilin.tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


def collapsed(path, blank):
    return [label for label, _ in itertools.groupby(path) if label != blank]


def by_enumeration(log_probs, target, blank):
    """The sum over every path of labels that collapses to the target."""
    T, C = log_probs.shape
    paths = [p for p in itertools.product(range(C), repeat=T) if collapsed(p, blank) == list(target)]
    total = sum(math.exp(sum(log_probs[t, c] for t, c in enumerate(p))) for p in paths)
    return -math.log(total) if total else math.inf


@pytest.mark.parametrize("blank", [0, 3])
@pytest.mark.parametrize("length", [0, 1, 2, 4])
def test_losses_are_the_sum_over_all_alignments(blank, length):
    x = F.log_softmax(logits(4, 5, 4), -1)
    targets = [[(label + (blank != 0) * 3 + 1) % 4 if blank else label for label in t] for t in LENGTHS]
    targets = [[label if label != blank else 1 for label in t] for t in targets]
    padded = resilin.tensor([t + [1] * (3 - len(t)) for t in targets])
    sizes = [len(t) for t in targets]
    found = F.ctc_loss(x, padded, [length] * 5, sizes, blank, "none").tolist()
    expected = [by_enumeration(x.detach().numpy()[:length, n], t, blank) for n, t in enumerate(targets)]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    flat = resilin.tensor([label for target in targets for label in target])
    together = F.ctc_loss(x, flat, (length,) * 5, resilin.tensor(sizes), blank, "none")
    np.testing.assert_array_equal(together.tolist(), found)


def test_the_gradient_after_log_softmax_agrees_with_finite_differences():
    targets = resilin.tensor([[1, 2, 1], [2, 2, 0], [3, 0, 0]])

    def loss(x, reduction="mean"):
        return F.ctc_loss(F.log_softmax(x, -1), targets, [6, 4, 3], [3, 2, 0], reduction=reduction)

    for reduction in ("mean", "sum", "none"):
        assert gradcheck(lambda x, how=reduction: loss(x, how), (logits(6, 3, 4),))


def test_steps_after_a_samples_length_get_no_gradient():
    x = F.log_softmax(logits(5, 2, 4), -1).detach().requires_grad_()
    F.ctc_loss(x, resilin.tensor([[1, 2], [3, 3]]), [5, 3], [2, 2]).backward()
    assert not x.grad[3:, 1].any()
    assert bool((x.grad[:3, 1] != 0).all())


def test_an_impossible_target_gives_infinity_and_nan_or_with_zero_infinity_zeros():
    x = F.log_softmax(logits(2, 2, 4), -1).detach().requires_grad_()
    arguments = (resilin.tensor([[1, 2], [1, 1]]), [2, 2], [2, 2])
    loss = F.ctc_loss(x, *arguments, reduction="none")
    assert loss.isinf().tolist() == [False, True]
    (g,) = resilin.autograd.grad(loss.sum(), x)
    assert g.isnan().any(-1).tolist() == [[False, True]] * 2
    loss = F.ctc_loss(x, *arguments, reduction="none", zero_infinity=True)
    assert loss[1].item() == 0
    (g,) = resilin.autograd.grad(loss.sum(), x)
    assert bool(g.isfinite().all())
    assert not g[:, 1].any()


def test_a_sequence_without_a_batch_gives_one_number():
    x = F.log_softmax(logits(5, 4), -1)
    found = F.ctc_loss(x, resilin.tensor([1, 2]), resilin.tensor(5), resilin.tensor(2), reduction="none")
    assert found.shape == ()
    assert found.item() == pytest.approx(by_enumeration(x.detach().numpy(), [1, 2], 0))


def test_a_second_derivative_is_refused():
    x = logits(3, 1, 3)
    loss = F.ctc_loss(F.log_softmax(x, -1), resilin.tensor([[1]]), [3], [1])
    (g,) = resilin.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        g.sum().backward()


X, TARGETS = resilin.zeros(5, 2, 4), resilin.tensor([[1, 2], [1, 1]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: F.ctc_loss(X, TARGETS, [5, 6], [2, 2]), r"input_lengths from 0 to 5, got \[5, 6\]"),
        (lambda: F.ctc_loss(X, TARGETS, [5, 5], [2, 3]), r"expected targets \(2, at least 3\)"),
        (lambda: F.ctc_loss(X, TARGETS, [5], [2, 2]), "input_lengths must be of size batch_size 2, got 1"),
        (lambda: F.ctc_loss(X, TARGETS, [5.0, 5.0], [2, 2]), "must be integral"),
        (lambda: F.ctc_loss(X, TARGETS, [5, 5], [2, -1]), "at least 0"),
        (lambda: F.ctc_loss(X, TARGETS * 5, [5, 5], [2, 2]), "labels from 0 to 3"),
        (lambda: F.ctc_loss(X, resilin.tensor([1, 2, 1]), [5, 5], [2, 2]), "need 4 labels, got 3"),
        (lambda: F.ctc_loss(X, TARGETS, [5, 5], [2, 2], blank=4), "label range 0 to 3, got 4"),
        (lambda: F.ctc_loss(X, TARGETS.float(), [5, 5], [2, 2]), "integer dtype"),
        (lambda: F.ctc_loss(X.to(resilin.int64), TARGETS, [5, 5], [2, 2]), "float32 or float64"),
    ],
)
def test_mistakes_are_named(call, words):
    with pytest.raises(RuntimeError, match=words):
        call()
