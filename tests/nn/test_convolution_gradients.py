"""nn.grad gives the gradients of convolutions from shapes alone."""

import pytest

import resilin
from resilin import nn
from resilin.nn import functional as F


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_they_are_those_of_backward(axes):
    x = resilin.randn(2, 4, *(5, 4, 6)[:axes], requires_grad=True)
    w = resilin.randn(6, 2, *(3, 2, 2)[:axes], requires_grad=True)
    window = (2, 1, 1, 2)
    y = getattr(F, f"conv{axes}d")(x, w, None, *window)
    g = resilin.randn(y.shape)
    y.backward(g)
    with resilin.no_grad():
        assert resilin.allclose(getattr(nn.grad, f"conv{axes}d_input")(x.shape, w, g, *window), x.grad)
        assert resilin.allclose(getattr(nn.grad, f"conv{axes}d_weight")(x, w.shape, g, *window), w.grad)


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(RuntimeError, match="shape"):
        nn.grad.conv1d_input((1, 1, 4), resilin.ones(1, 1, 2), resilin.ones(1, 1, 5))
