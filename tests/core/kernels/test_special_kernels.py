"""Special functions by native code: as their numpy forms, for any number of threads."""

from typing import Any

import numpy as np
import pytest

from resilin.core.kernels import bessel, gamma, loader
from resilin.core.machine import threads
from resilin.core.ops import special as ops

FORMULAS: dict[str, Any] = {
    "gammaln": gamma.lgamma,
    "digamma": gamma.digamma,
    "erfc": gamma.erfc,
    "erfcx": bessel.erfcx,
    "erfinv": gamma.erfinv,
    "ndtr": ops._ndtr,
    "ndtri": lambda p: -np.sqrt(2) * gamma.erfcinv(2 * p),
    "log_ndtr": ops._log_ndtr,
    "i0": bessel.i0,
    "i0e": bessel.i0e,
    "i1": bessel.i1,
    "i1e": bessel.i1e,
}
pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

ENDS = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 8.0, -8.0, 13.0, 700.0, -700.0, 1e30, -1e30, np.inf, -np.inf, np.nan]


def _points() -> Any:
    r = np.random.default_rng(0)
    return np.concatenate([ENDS, r.uniform(-1, 1, 500), r.normal(size=500) * 12, r.uniform(0, 1e-6, 30)])


def _native(name: str, x: Any) -> Any:
    return getattr(loader.native, "special_" + name)(x)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_functions_equal_their_numpy_forms(name: str, dtype: Any) -> None:
    x = _points().astype(dtype)
    with np.errstate(all="ignore"):
        expected = FORMULAS[name](x.astype(np.float64)).astype(dtype)
    # the numpy form is good to some ulps of the largest term, which cancels where a function is 0
    np.testing.assert_allclose(_native(name, x), expected, 64 * np.finfo(dtype).eps, 1e-14)


@pytest.mark.parametrize("name", FORMULAS)
def test_special_functions_of_an_element_do_not_depend_on_its_place(name: str) -> None:
    x = _points().astype(np.float32)
    whole = _native(name, x)
    for n in (0, 1, 63, 64, 65):
        assert _native(name, x[-n:] if n else x[:0]).tobytes() == (whole[-n:] if n else whole[:0]).tobytes()
    assert _native(name, x.reshape(-1, 1)[::2]).tobytes() == whole[::2].tobytes()


def test_special_functions_are_the_same_for_any_number_of_threads() -> None:
    x, before = np.resize(_points(), 20_000).astype(np.float32), threads.get_num_threads()
    found = set()
    for count in (1, 2):
        threads.set_num_threads(count)
        found.add(b"".join(_native(name, x).tobytes() for name in FORMULAS))
    threads.set_num_threads(before)
    assert len(found) == 1


def test_special_functions_of_integers_are_left_to_the_numpy_form() -> None:
    assert all(_native(name, np.arange(3)) is None for name in FORMULAS)
