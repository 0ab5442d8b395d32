"""Options of gradcheck and of anomaly mode."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import resilin
from resilin.autograd import Function, detect_anomaly, gradcheck, gradgradcheck, set_detect_anomaly
from resilin.core.autograd.gradcheck import GradcheckError

X = resilin.tensor([0.5, 2.0], dtype=resilin.float64, requires_grad=True)


class _Drifting(Function):
    """The identity, whose gradient is a little off, more with every backward."""

    count = itertools.count()

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * (1 + 1e-9 * next(_Drifting.count))


def test_right_gradients_pass_in_both_orders() -> None:
    assert gradcheck(lambda x: x.exp() * x, (X,), fast_mode=True, check_undefined_grad=False)
    assert gradgradcheck(lambda x: x.exp() * x, (X,))


def test_a_wrong_gradient_is_an_error_or_false() -> None:
    with pytest.raises(GradcheckError, match="analytical"):
        gradcheck(lambda x: x * x.detach(), (X,))
    assert not gradcheck(lambda x: x * x.detach(), (X,), raise_exception=False)


def test_gradients_that_change_from_run_to_run_need_a_tolerance() -> None:
    with pytest.raises(GradcheckError, match="not reentrant"):
        gradcheck(_Drifting.apply, (X,))
    assert gradcheck(_Drifting.apply, (X,), nondet_tol=1e-6)


def test_options_that_are_not_there_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="masked"):
        gradcheck(lambda x: x, (X,), masked=True)
    with pytest.raises(ValueError, match="nothing is left to check"):
        gradcheck(lambda x: x, (X,), check_backward_ad=False)
    with pytest.raises(ValueError, match="requires check_forward_ad"):
        gradcheck(lambda x: x, (X,), check_batched_forward_grad=True)
    with pytest.raises(TypeError, match="epsilon"):
        gradcheck(lambda x: x, (X,), epsilon=1)


def test_forward_mode_and_batches_are_checked_when_asked_for() -> None:
    everything = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert gradcheck(lambda x: (x.sin() * x.sum()).cumsum(0), (X,), **everything)
    again = {"check_fwd_over_rev": True, "check_rev_over_rev": True, "check_batched_grad": True}
    assert gradgradcheck(lambda x: (x.sin() * x.sum()).cumsum(0), (X,), **again)
    z = resilin.tensor([1 + 2j, 0.5 - 1j], requires_grad=True, dtype=resilin.complex128)
    assert gradcheck(lambda z: (z * z.conj() * z).exp(), (z,), **everything)

    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 3

    with pytest.raises(GradcheckError, match="forward mode"):
        gradcheck(Wrong.apply, (X,), check_forward_ad=True, check_backward_ad=False)


def test_anomaly_mode_looks_for_nan_only_if_asked_to() -> None:
    x = resilin.tensor([0.0], requires_grad=True)
    with detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
        (x.sqrt() * 0).sum().backward()
    with detect_anomaly(check_nan=False):
        (x.sqrt() * 0).sum().backward()
    with set_detect_anomaly(True, check_nan=False):
        (x.sqrt() * 0).sum().backward()


def test_gradgradcheck_draws_gradients_whose_elements_lie_apart_on_request() -> None:
    seen = []

    class Watching(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(g.is_contiguous())
            return g * ctx.saved_tensors[0].exp()

    assert gradgradcheck(Watching.apply, X, gen_non_contig_grad_outputs=True)
    assert False in seen
    seen.clear()
    assert gradgradcheck(Watching.apply, X)
    assert False not in seen


def test_gradgradcheck_looks_at_second_derivatives_in_forward_mode_on_request() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * ctx.saved_tensors[0].detach()

    assert gradgradcheck(lambda x: x.exp(), X, check_fwd_over_rev=True, check_rev_over_rev=False)
    with pytest.raises(GradcheckError):
        gradgradcheck(Wrong.apply, X, check_fwd_over_rev=True, check_rev_over_rev=False)
