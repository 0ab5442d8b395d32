"""Errors of public functions name the function and what it was given, and are of Python's common types."""

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.core.public import dispatch, error_context
from resilin.nn import functional as F

X = resilin.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: resilin.sum("abc"), TypeError, r"sum\('abc'\): expected a Tensor, got str"),
        (lambda: resilin.cat([X, 1]), TypeError, r"cat\(\[float32 \[2, 3\], 1\]\): expected a Tensor, got int"),
        (lambda: X.flip(5), IndexError, r"flip\(float32 \[2, 3\], 5\): Dimension out of range"),
        (lambda: resilin.zeros(1 << 50), RuntimeError, r"zeros\(1125899906842624\): there is not enough memory"),
        (lambda: resilin.randn(1 << 70), RuntimeError, r"randn\(.*more elements than any memory can hold"),
        (
            lambda: nn.BatchNorm1d(3)([X]),
            TypeError,
            r"BatchNorm1d\(\[.*\]\): expected a Tensor, got list",
        ),
        (lambda: resilin.atleast_2d("abc"), TypeError, r"atleast_2d\(\): expected a Tensor or a list"),
        (lambda: resilin.where(1, 2, 3), TypeError, r"where\(\): expected a Tensor as condition, got int"),
        (lambda: resilin.can_cast(X, 1), TypeError, r"can_cast\(\): expected a resilin.dtype, got Tensor"),
        (lambda: resilin.randperm(resilin.tensor(2.5)), TypeError, "randperm"),
        (lambda: F.gelu(resilin.arange(3)), NotImplementedError, r"gelu\(int64 \[3\]\): not implemented for int64"),
    ],
)
def test_a_mistake_is_told_with_the_function_and_its_arguments(call, kind, text):
    with pytest.raises(kind, match=text) as caught:
        call()
    assert type(caught.value).__module__ == "builtins"


def test_a_failed_draw_leaves_the_generator_as_it_was():
    resilin.manual_seed(5)
    expected = resilin.randn(3).tolist()
    resilin.manual_seed(5)
    with pytest.raises(RuntimeError):
        resilin.randn(1 << 70)
    assert resilin.randn(3).tolist() == expected


def test_an_attribute_that_a_module_lacks_stays_an_attribute_error():
    class Lacking(nn.Module):
        def forward(self, x):
            return self.missing(x)

    with pytest.raises(AttributeError, match="missing"):
        Lacking()(X)


def test_errors_of_others_code_stay_as_they_are():
    class Odd:
        def __array__(self, dtype=None, copy=None):
            raise AttributeError("mine")

    def hook(grad):
        raise KeyError("mine, too")

    x = resilin.ones(2, requires_grad=True)
    x.register_hook(hook)
    with pytest.raises(KeyError, match="mine, too"):
        x.sum().backward()
    with pytest.raises(AttributeError, match=r"^mine$"):
        resilin.tensor(Odd())


def test_the_form_in_python_explains_as_the_native_one_does():
    made = dispatch._in_python(resilin.flip.__wrapped__, None)
    made.__name__ = "flip"
    with pytest.raises(IndexError, match=r"flip\(float32 \[2, 3\], 5\): Dimension out of range"):
        made(X, 5)


def test_errors_of_numpy_become_errors_of_python():
    def spread(*_):
        return None

    try:
        np.swapaxes(np.ones((2, 3)), 0, 9)
    except np.exceptions.AxisError as error:
        made = error_context.explain(spread, (X, 0, 9), error)
    assert type(made) is IndexError
    assert str(made).startswith("spread(float32 [2, 3], 0, 9): axis2: axis 9 is out of bounds")
