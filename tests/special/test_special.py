"""resilin.special: errors beside values of 40 digits, edges, names, derivatives that declarations do not draw."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import resilin
from resilin import special
from resilin.autograd import gradcheck

VALUES = json.loads((Path(__file__).parents[1] / "fixtures" / "special_values.json").read_text())
ULPS = {  # the largest error in units in the last place; 4 where nothing is said
    "modified_bessel_k0": 8,
    "scaled_modified_bessel_k0": 8,
    "gammainc": 32,
    "gammaincc": 32,
}
OF_AMPLITUDE = ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")
OTHERS = {"trigamma": lambda x: special.polygamma(1, x), "pentagamma": lambda x: special.polygamma(4, x)}
INF, NAN = float("inf"), float("nan")


def of(name, *args, dtype=resilin.float64):
    fn = OTHERS.get(name) or getattr(special, name)
    return fn(*(resilin.tensor(a, dtype=dtype) for a in args)).numpy()


@pytest.mark.parametrize("name", [name for name in VALUES if name not in OF_AMPLITUDE])
def test_errors_are_a_few_units_in_the_last_place(name):
    expected = np.array(VALUES[name]["values"])
    error = np.abs(of(name, *VALUES[name]["args"]) - expected) / np.spacing(np.abs(expected))
    assert error.max() <= ULPS.get(name, 4)
    assert np.median(error) <= 1


@pytest.mark.parametrize("name", OF_AMPLITUDE)
def test_errors_of_oscillating_functions_are_a_few_units_of_their_amplitude(name):
    x, expected = np.array(VALUES[name]["args"][0]), np.array(VALUES[name]["values"])
    amplitude = np.maximum(np.where(np.abs(x) < 8, 1, np.sqrt(2 / (math.pi * np.abs(x)))), np.abs(expected))
    # beyond 8 the sine of x is taken as it is: x has an error of half a unit itself
    assert (np.abs(of(name, x) - expected) / amplitude).max() < 1e-15


@pytest.mark.parametrize("name", sorted(VALUES))
def test_float32_results_are_rounded_float64_results(name):
    args = [np.array(a, np.float32) for a in VALUES[name]["args"]]
    found = of(name, *args, dtype=resilin.float32)
    assert found.dtype == np.float32
    with np.errstate(over="ignore"):
        expected = of(name, *args).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=2e-7)


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("erfinv", [-1, 0, 1, 1.5, NAN], [-INF, 0, INF, NAN, NAN]),
        ("ndtri", [0, 0.5, 1, -0.1, 5e-324], [-INF, 0, INF, NAN, -38.46740561714434]),
        ("erfcx", [-30, 0, INF, -INF], [INF, 1, 0, INF]),
        ("log_ndtr", [-INF, INF, -1e10], [-INF, 0, -5e19]),
        ("entr", [0, -1, 1, INF, NAN], [0, -INF, 0, -INF, NAN]),
        ("gammaln", [0, -1, 1, 2, INF, -INF, 1e305], [INF, INF, 0, 0, INF, INF, math.lgamma(1e305)]),
        ("digamma", [0, -0.0, -1, INF, NAN], [-INF, INF, NAN, INF, NAN]),
        ("i0", [0, 800, -INF, NAN], [1, INF, INF, NAN]),
        ("i1e", [0, INF, -INF, NAN], [0, 0, 0, NAN]),
        ("modified_bessel_k0", [0, -1, INF, NAN], [INF, NAN, 0, NAN]),
        ("scaled_modified_bessel_k1", [0, -1, NAN], [INF, NAN, NAN]),
        ("bessel_j0", [0, INF, NAN], [1, 0, NAN]),
        ("bessel_j1", [0, 1, -1], [0, 0.4400505857449335, -0.4400505857449335]),
        ("bessel_y1", [0, -1, INF], [-INF, NAN, 0]),
        ("sinc", [0, 0.5, NAN], [1, 2 / math.pi, NAN]),
        ("spherical_bessel_j0", [0, INF, NAN], [1, 0, NAN]),
    ],
)
def test_edges(name, x, expected):
    np.testing.assert_allclose(of(name, x), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("name", "a", "x", "expected"),
    [
        ("gammainc", [0, 0, 1, 1, INF, -1, 1, NAN], [0, 1, 0, INF, 1, 1, -1, 1], [NAN, 1, 0, 1, 0, NAN, NAN, NAN]),
        ("gammaincc", [0, 0, 1, 1, INF, -1, 1, NAN], [0, 1, 0, INF, 1, 1, -1, 1], [NAN, 0, 1, 0, 1, NAN, NAN, NAN]),
        (
            "zeta",
            [2, 1, 0.5, 2, 2, 2.5, 1e300],
            [1, 1, 1, 0, -1, -0.5, 2],
            [math.pi**2 / 6, INF, NAN, INF, INF, NAN, 0],
        ),
        ("xlog1py", [0, 0, 2, 1], [INF, NAN, 0, -1], [0, NAN, 0, -INF]),
    ],
)
def test_edges_of_functions_of_two_arguments(name, a, x, expected):
    np.testing.assert_allclose(of(name, a, x), expected, rtol=1e-14)


def test_negative_arguments_of_the_gamma_family_follow_their_recurrences():
    x = np.array([-0.5, -1.25, -7.75, -30.1])
    np.testing.assert_allclose(of("gammaln", x), of("gammaln", x + 1) - np.log(np.abs(x)), rtol=1e-12)
    np.testing.assert_allclose(of("digamma", x), of("digamma", x + 1) - 1 / x, rtol=1e-12)
    np.testing.assert_allclose(of("trigamma", x), of("trigamma", x + 1) + 1 / x**2, rtol=1e-12)
    np.testing.assert_allclose(of("gammaln", x), [math.lgamma(v) for v in x], rtol=1e-13)


def test_the_incomplete_functions_add_to_one_on_both_sides_of_temmes_expansion():
    for a in (9990.0, 10010.0, 1e8):
        x = a + np.sqrt(a) * np.array([-3, -0.5, 0, 0.5, 3])
        lower, upper = of("gammainc", np.full(5, a), x), of("gammaincc", np.full(5, a), x)
        np.testing.assert_allclose(lower + upper, 1, rtol=1e-14)
    # where the method changes, the recurrence P(a, x) - P(a + 1, x) = x ** a exp(-x) / Gamma(a + 1) still holds
    a, x = 9999.5, 9950.0
    step = math.exp(a * math.log(x) - x - math.lgamma(a + 1))
    assert of("gammainc", [a], [x])[0] - of("gammainc", [a + 1], [x])[0] == pytest.approx(step, rel=1e-9)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("kind", "tuvw")
def test_chebyshev_polynomials_are_their_trigonometric_forms(kind, shifted):
    angle = np.linspace(0.1, 3, 7)
    degree = np.arange(-1, 9.0)[:, None]
    forms = {
        "t": np.cos(degree * angle),
        "u": np.sin((degree + 1) * angle) / np.sin(angle),
        "v": np.cos((degree + 0.5) * angle) / np.cos(angle / 2),
        "w": np.sin((degree + 0.5) * angle) / np.sin(angle / 2),
    }
    x = (np.cos(angle) + 1) / 2 if shifted else np.cos(angle)
    found = of(f"{'shifted_' * shifted}chebyshev_polynomial_{kind}", np.broadcast_to(x, (10, 7)), degree)
    np.testing.assert_allclose(found[1:], forms[kind][1:], atol=1e-13)
    np.testing.assert_array_equal(found[0], 0)


def test_other_polynomials_equal_numpys():
    x = np.linspace(-2, 2, 9)
    families = {
        "hermite_polynomial_h": np.polynomial.hermite.Hermite,
        "hermite_polynomial_he": np.polynomial.hermite_e.HermiteE,
        "laguerre_polynomial_l": np.polynomial.laguerre.Laguerre,
        "legendre_polynomial_p": np.polynomial.legendre.Legendre,
    }
    for name, family in families.items():
        for degree in (0, 1, 4, 7):
            found = getattr(special, name)(resilin.tensor(x, dtype=resilin.float64), degree)
            np.testing.assert_allclose(found.numpy(), family.basis(degree)(x), rtol=1e-12, atol=1e-12)


def test_functions_made_of_others_have_gradients():
    x = resilin.tensor([2.5, 3.0, 7.5], dtype=resilin.float64).requires_grad_()
    y = resilin.tensor([0.5, 1.5, 0.25], dtype=resilin.float64).requires_grad_()
    assert gradcheck(lambda v: special.multigammaln(v, 3), (x,))
    assert gradcheck(special.xlog1py, (x, y))
    assert gradcheck(special.spherical_bessel_j0, (x,))
    with pytest.raises(RuntimeError, match="gammainc has no derivative with respect to its first argument"):
        special.gammainc(x, y).sum().backward()


def test_the_derivatives_of_bessel_functions_and_sinc_at_zero_are_their_limits():
    for name, slope in (
        ("i0", 0),
        ("i1", 0.5),
        ("i1e", 0.5),
        ("bessel_j1", 0.5),
        ("sinc", 0),
        ("erfinv", 0.8862269254527579),
    ):
        x = resilin.zeros(1, dtype=resilin.float64, requires_grad=True)
        getattr(special, name)(x).backward()
        assert x.grad.item() == pytest.approx(slope)


def test_root_names_and_methods_are_the_same_functions():
    x = resilin.tensor([0.25, 0.5], dtype=resilin.float64)
    for name in ("erfc", "erfinv", "sinc", "i0", "lgamma", "digamma"):
        expected = getattr(special, {"lgamma": "gammaln"}.get(name, name))(x).tolist()
        assert getattr(resilin, name)(x).tolist() == getattr(x, name)().tolist() == expected
        assert getattr(x.clone(), name + "_")().tolist() == expected
    assert x.polygamma(1).tolist() == resilin.polygamma(1, x).tolist()
    assert resilin.igamma(x, x).tolist() == special.gammainc(x, x).tolist()
    assert (x + 1).mvlgamma(2).tolist() == special.multigammaln(x + 1, 2).tolist()
    assert special.gammaln(resilin.tensor([3])).dtype == resilin.float32


def test_wrong_arguments_are_refused_with_the_reason():
    x = resilin.ones(2)
    with pytest.raises(RuntimeError, match="must not be negative"):
        special.polygamma(-1, x)
    with pytest.raises(TypeError, match="comes first"):
        special.polygamma(x, 1)
    with pytest.raises(RuntimeError, match="at least 1"):
        special.multigammaln(x, 0)
    with pytest.raises(TypeError, match="expected a Tensor"):
        special.erfcx(1.0)
