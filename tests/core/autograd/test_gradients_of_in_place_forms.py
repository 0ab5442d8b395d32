"""In-place forms have the gradients of their functions, also where these read a view of the old value."""

import numpy as np
import pytest

import resilin

INDEX = resilin.tensor([0, 0, 2])
OTHER = [1.5, 0.5, 2.5]

FORMS = {
    "xlogy_": lambda x, f, y: f(x, y),
    "cumprod_": lambda x, f, y: f(x, 0, dtype=resilin.float64),
    "ldexp_": lambda x, f, y: f(x, y),
    "float_power_": lambda x, f, y: f(x, y),
    "scatter_reduce_": lambda x, f, y: f(x, 0, INDEX, y, "prod"),
    "index_reduce_": lambda x, f, y: f(x, 0, INDEX, y, "amin"),
    "masked_scatter_": lambda x, f, y: f(x, resilin.tensor([True, False, True]), y),
    "put_": lambda x, f, y: f(x, resilin.tensor([0, 2]), y[:2]),
    "addcdiv_": lambda x, f, y: f(x, y, y * y),
    "lerp_": lambda x, f, y: f(x, y * 2, y),
    "logit_": lambda x, f, y: f(x / 8, 0.01) if f is resilin.logit else f(x.div_(8), 0.01),
}


def _gradients(call, name, shape):
    x = resilin.tensor([0.5, 2.0, 3.0], dtype=resilin.float64).reshape(shape).requires_grad_()
    y = resilin.tensor(OTHER, dtype=resilin.float64, requires_grad=True)
    result = FORMS[name]((x * 1).reshape(3), call, y)
    grads = resilin.autograd.grad((result * result).sum(), (x, y), allow_unused=True)
    return result, [None if g is None else g.numpy() for g in grads]


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
@pytest.mark.parametrize("name", FORMS)
def test_gradients_in_place_are_those_of_the_function(name, shape):
    function = getattr(resilin, name[:-1], None) or getattr(resilin.Tensor, name[:-1])
    expected, wanted = _gradients(function, name, shape)
    result, found = _gradients(getattr(resilin.Tensor, name), name, shape)
    np.testing.assert_allclose(result.detach().numpy(), expected.detach().numpy())
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("reduce", ["prod", "amin", "amax", "mean", "sum"])
def test_gradients_of_scattering_into_a_number_in_place_are_those_of_the_function(reduce):
    found = []
    for name in ("scatter_reduce", "scatter_reduce_"):
        x = resilin.tensor(3.0, dtype=resilin.float64, requires_grad=True)
        y = resilin.tensor(2.0, dtype=resilin.float64, requires_grad=True)
        result = getattr(x * 1, name)(0, resilin.tensor(0), y, reduce)
        found.append([g.item() for g in resilin.autograd.grad(result, (x, y))])
    assert found[0] == found[1]


def test_a_function_of_itself_in_place_has_its_gradient():
    x = resilin.tensor([0.5, 2.0, 3.0], dtype=resilin.float64, requires_grad=True)
    y = x * 1
    y.xlogy_(y)
    (grad,) = resilin.autograd.grad(y.sum(), x)
    np.testing.assert_allclose(grad.numpy(), np.log(x.detach().numpy()) + 1)


@pytest.mark.parametrize("function", [resilin.xlogy, lambda a, b: a.clone() * 0 + resilin.cumprod(a, 0, dtype=a.dtype)])
def test_a_write_to_what_a_function_read_without_converting_it_is_noticed(function):
    x = resilin.tensor([0.5, 2.0, 3.0], dtype=resilin.float64, requires_grad=True)
    a = x * 1
    z = function(a, resilin.tensor(OTHER, dtype=resilin.float64, requires_grad=True))
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
