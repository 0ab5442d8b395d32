"""The windows of torch.signal.windows, against values recorded from PyTorch 2.13."""

import inspect

import numpy as np
import pytest

import resilin
from resilin.signal import windows

OF_FIVE = {
    ("bartlett", True): [0.0, 0.5, 1.0, 0.5, 0.0],
    ("bartlett", False): [0.0, 0.4, 0.8, 0.8, 0.4],
    ("blackman", True): [0.0, 0.34, 1.0, 0.34, 0.0],
    ("blackman", False): [0.0, 0.200770143, 0.849229857, 0.849229857, 0.200770143],
    ("cosine", True): [0.309016994, 0.809016994, 1.0, 0.809016994, 0.309016994],
    ("cosine", False): [0.258819045, 0.707106781, 0.965925826, 0.965925826, 0.707106781],
    ("exponential", True): [0.135335283, 0.367879441, 1.0, 0.367879441, 0.135335283],
    ("exponential", False): [0.082084999, 0.22313016, 0.60653066, 0.60653066, 0.22313016],
    ("gaussian", True): [0.135335283, 0.60653066, 1.0, 0.60653066, 0.135335283],
    ("gaussian", False): [0.043936934, 0.324652467, 0.882496903, 0.882496903, 0.324652467],
    ("general_cosine", True): [0.54, 0.15, 1.0, 0.15, 0.54],
    ("general_cosine", False): [0.54, 0.138130823, 0.741869177, 0.741869177, 0.138130823],
    ("general_hamming", True): [0.08, 0.54, 1.0, 0.54, 0.08],
    ("general_hamming", False): [0.08, 0.397852183, 0.912147817, 0.912147817, 0.397852183],
    ("hamming", True): [0.08, 0.54, 1.0, 0.54, 0.08],
    ("hamming", False): [0.08, 0.397852183, 0.912147817, 0.912147817, 0.397852183],
    ("hann", True): [0.0, 0.5, 1.0, 0.5, 0.0],
    ("hann", False): [0.0, 0.345491503, 0.904508497, 0.904508497, 0.345491503],
    ("kaiser", True): [5.2773e-05, 0.215672745, 1.0, 0.215672745, 5.2773e-05],
    ("kaiser", False): [5.2773e-05, 0.101719688, 0.792939834, 0.792939834, 0.101719688],
    ("nuttall", True): [0.0003628, 0.2269824, 1.0, 0.2269824, 0.0003628],
    ("nuttall", False): [0.0003628, 0.110515253, 0.798258097, 0.798258097, 0.110515253],
}


def _own(name):
    return {"a": [0.46, 0.23, 0.31]} if name == "general_cosine" else {}


@pytest.mark.parametrize(("name", "sym"), OF_FIVE)
def test_windows_of_five_points_are_those_of_pytorch(name, sym):
    window = getattr(windows, name)(5, sym=sym, dtype=resilin.float64, **_own(name))
    np.testing.assert_allclose(window.numpy(), OF_FIVE[name, sym], rtol=0, atol=6e-10)
    assert getattr(windows, name)(5, sym=sym, **_own(name)).dtype is resilin.float32


@pytest.mark.parametrize("name", windows.__all__)
def test_short_windows_are_empty_or_one_and_wrong_ones_are_refused(name):
    make, own = getattr(windows, name), _own(name)
    assert make(0, **own).shape == (0,)
    assert make(1, sym=False, **own).tolist() == [1]
    with pytest.raises(ValueError, match=f"{name} requires non-negative window length, got M=-1"):
        make(-1, **own)
    with pytest.raises(ValueError, match=f"{name} expects float32 or float64 dtypes, got: resilin.int64"):
        make(5, dtype=resilin.int64, **own)
    with pytest.raises(TypeError, match="M must be an int"):
        make(2.5, **own)
    assert make(3, requires_grad=True, layout=resilin.strided, **own).requires_grad
    assert next(iter(inspect.signature(make).parameters)) == "M"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: windows.exponential(5, tau=0), ValueError, "tau must be positive"),
        (lambda: windows.exponential(5, center=2), ValueError, "center must be None"),
        (lambda: windows.gaussian(5, std=-1), ValueError, "must be positive"),
        (lambda: windows.kaiser(5, beta=-1), ValueError, "non-negative"),
        (lambda: windows.general_cosine(5, a=[]), ValueError, "cannot be empty"),
        (lambda: windows.general_cosine(5, a=3), TypeError, "list or tuple"),
    ],
)
def test_wrong_shapes_of_windows_are_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_the_center_of_a_periodic_window_can_be_chosen():
    np.testing.assert_allclose(windows.exponential(3, center=2, sym=False).numpy(), np.exp([-2, -1, 0]), rtol=1e-6)
