"""Arrays that broadcast over short rows, fills and conversions: numpy's bits for any layout and number of threads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import loader
from resilin.core.machine import threads

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

HALVES = [resilin.float16, resilin.bfloat16]
DTYPES = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.float32, np.float64, np.complex64, np.complex128]
SHAPES: dict[str, Callable[[Any, int, int], tuple[Any, Any]]] = {
    "a column": lambda x, n, c: (x(n, c), x(n, 1)),
    "a column first": lambda x, n, c: (x(n, 1), x(n, c)),
    "a row": lambda x, n, c: (x(n, c), x(c)),
    "a row and a column": lambda x, n, c: (x(n, 1), x(1, c)),
    "channels": lambda x, n, c: (x(4, n // 4, c), x(n // 4, 1)),
    "a part of columns": lambda x, n, c: (x(n, c + 3)[:, :c], x(n, 1)),
    "every other column": lambda x, n, c: (x(n, 2 * c)[:, ::2], x(n, c)),
    "columns backwards": lambda x, n, c: (x(n, c)[:, ::-1], x(n, c)),
    "a batch of rows": lambda x, n, c: (x(4, n // 4, c), x(4, 1, c)),
    "three dimensions": lambda x, n, c: (x(n // 4, 4, c), x(n // 4, 1, 1)),
}


def _maker(dtype: Any, seed: int) -> Callable[..., Any]:
    r = np.random.default_rng(seed)

    def make(*shape: int) -> Any:
        x = r.normal(size=shape) * 4
        return (
            x > 0 if dtype is np.bool_ else x + 1j * r.normal(size=shape) if dtype(0).dtype.kind == "c" else x
        ).astype(dtype)

    return make


def _on(count: int, run: Callable[[], Any]) -> Any:
    before = threads.get_num_threads()
    threads.set_num_threads(count)
    try:
        return run()
    finally:
        threads.set_num_threads(before)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_short_rows_give_numpys_bits(shapes: str, dtype: Any) -> None:
    for n, c in ((1024, 3), (1000, 64), (300, 255), (64, 600)):
        x, y = SHAPES[shapes](_maker(dtype, n), n, c)
        # numpy's own products of complex numbers have other bits where a row is not in one run
        for name in ("add", "subtract" if np.dtype(dtype).kind in "bc" else "multiply", "maximum", "equal"):
            if name == "subtract" and dtype is np.bool_:
                continue
            ufunc = getattr(np, name)
            known = loader.native.looped(ufunc, name)
            expected = ufunc(x, y)
            for count in (1, 2):
                found = _on(count, lambda known=known, x=x, y=y: known(x, y))
                assert found.dtype == expected.dtype
                assert found.shape == expected.shape
                assert found.strides == expected.strides
                assert found.tobytes() == expected.tobytes(), (shapes, name, n, c)


def test_short_rows_are_written_where_they_are() -> None:
    make = _maker(np.float32, 0)
    add = loader.native.looped(np.add, "add")
    M, column, wide = make(1000, 64), make(1000, 1), make(1000, 70)
    expected = M + column
    assert add(M, column, M) is M
    assert M.tobytes() == expected.tobytes()
    part = wide[:, 3:67]
    before, expected = wide.copy(), part + column
    add(part, column, part)
    assert part.tobytes() == expected.tobytes()
    assert wide[:, :3].tobytes() == before[:, :3].tobytes()
    assert wide[:, 67:].tobytes() == before[:, 67:].tobytes()


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_broadcast_as_float32_rounded_once(dtype: Any) -> None:
    M, column, row = (resilin.randn(shape).to(dtype) for shape in ((999, 64), (999, 1), (64,)))
    wide = [x.float() for x in (M, column, row)]
    assert resilin.equal(M * column, (wide[0] * wide[1]).to(dtype))
    assert resilin.equal(M - row, (wide[0] - wide[2]).to(dtype))
    assert resilin.equal(column / row, (wide[1] / wide[2]).to(dtype))
    found = M.addcmul(row, column, value=0.5)
    assert resilin.equal(found, (wide[0] + wide[2] * 0.5 * wide[1]).to(dtype))


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64])
def test_functions_of_several_steps_broadcast(dtype: Any) -> None:
    M, column, row = (resilin.randn(shape).to(dtype) for shape in ((999, 64), (999, 1), (64,)))
    assert resilin.equal(M.addcmul(row, column, value=0.5), M + row * 0.5 * column)
    assert resilin.equal(M.addcdiv(row, column, value=0.5), M + row * 0.5 / column)
    assert resilin.equal(column.lerp(row, 0.3), column + 0.3 * (row - column))
    assert column.lerp(row, 0.3).shape == (999, 64)
    into, part = M.clone(), M.clone()
    assert resilin.equal(into.addcmul_(row, column), M + row * column)
    assert resilin.equal(part[:, ::2].addcmul_(row[::2], column), (M + row * column)[:, ::2])
    assert resilin.equal(part[:, 1::2], M[:, 1::2])
    with pytest.raises(RuntimeError):
        column.clone().addcmul_(row, row)


HALF_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "x + y": lambda x, y: x + y, "x - y": lambda x, y: x - y, "x * y": lambda x, y: x * y, "x / y": lambda x, y: x / y,
    "x * 2.5": lambda x, y: x * 2.5, "1 - x": lambda x, y: 1 - x, "2 / x": lambda x, y: 2.0 / x,
    "x + 1": lambda x, y: x + 1,
    "maximum": lambda x, y: resilin.maximum(x, y), "minimum": lambda x, y: resilin.minimum(x, y),
    "square": lambda x, y: x.square(), "sqrt": lambda x, y: x.sqrt(), "rsqrt": lambda x, y: x.rsqrt(),
    "reciprocal": lambda x, y: x.reciprocal(), "floor": lambda x, y: x.floor(), "ceil": lambda x, y: x.ceil(),
    "trunc": lambda x, y: x.trunc(), "round": lambda x, y: x.round(), "frac": lambda x, y: x.frac(),
}  # fmt: skip


def _every_half(dtype: Any) -> Any:
    return resilin.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16)).view(dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", HALF_FUNCTIONS)
def test_simple_functions_of_halves_are_those_of_float32_rounded_once(name: str, dtype: Any) -> None:
    x = _every_half(dtype)
    y = x.flip(0).roll(12345)
    function = HALF_FUNCTIONS[name]
    for n in (1 << 16, 1000, 31, 7, 1):
        a, b = x[-n:], y[:n]
        found, expected = function(a, b), function(a.float(), b.float()).to(dtype)
        assert found.dtype == dtype
        nan = expected.isnan()
        assert resilin.equal(found.isnan(), nan)
        same = found.view(resilin.int16) == expected.view(resilin.int16)
        assert bool((same | nan | ((found == 0) & (expected == 0) & (name in ("maximum", "minimum")))).all())
    strided = function(x[::3], y[::3])
    assert resilin.equal(strided.nan_to_num(), function(x[::3].clone(), y[::3].clone()).nan_to_num())
    for count in (1, 3):
        again = _on(count, lambda: function(x, y))
        assert resilin.equal(again.view(resilin.int16), function(x, y).view(resilin.int16))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64])
def test_masks_are_filled_in_place(dtype: Any) -> None:
    make, mask = _maker(dtype, 1), _maker(np.bool_, 2)
    for shape in ((0,), (1,), (33,), (100, 64), (40_001,)):
        x, b = make(*shape), mask(*shape)
        value = 1 if dtype(0).dtype.kind in "biu" else -2.5
        expected = np.where(b, dtype(value), x)
        found = resilin.tensor(x)
        assert found.masked_fill_(resilin.tensor(b), value) is found
        assert found.numpy().tobytes() == expected.tobytes()
    x, row = make(100, 64), mask(64)
    found = resilin.tensor(x)
    found.masked_fill_(resilin.tensor(row), 0)
    assert found.numpy().tobytes() == np.where(row, dtype(0), x).tobytes()
    part = resilin.tensor(x)
    part.t()[1::2].masked_fill_(resilin.tensor(row[1::2])[:, None], 0)
    row[::2] = False
    assert part.numpy().tobytes() == np.where(row, dtype(0), x).tobytes()
    with pytest.raises((RuntimeError, IndexError)):
        found[0].masked_fill_(resilin.ones(100, 64, dtype=resilin.bool), 0)


def test_a_mask_that_is_what_it_fills() -> None:
    b = resilin.tensor([True, False, True])
    assert b.masked_fill_(b, 0).tolist() == [False, False, False]


@pytest.mark.parametrize("to", [np.float32, np.float64, np.float16])
def test_integers_become_the_nearest_floats(to: Any) -> None:
    r = np.random.default_rng(0)
    edges = [0, -1, 2**24 + 1, -(2**24) - 1, 2**50, 2**50 - 1, -(2**50), -(2**50) - 1, 2**53 + 1, 2**63 - 1, -(2**63)]
    for n in (1, 33, 5000):
        for bits in (10, 40, 49, 50, 51, 52, 63):
            x = r.integers(-(2**bits), 2**bits, n)
            for k, edge in enumerate(edges[: 0 if n == 1 else None]):
                x[k * 2 % n] = edge
            found = resilin.tensor(x).to(resilin.tensor(np.zeros(1, to)).dtype).numpy()
            with np.errstate(over="ignore"):
                assert (
                    found.tobytes() == (x.astype(np.float32).astype(to) if to is np.float16 else x.astype(to)).tobytes()
                )


def test_ranges_and_lines_are_the_same_on_any_number_of_threads() -> None:
    for n in (8191, 8192, 100_003):
        for count in (1, 2, 3):
            assert _on(count, lambda n=n: resilin.arange(n)).numpy().tobytes() == np.arange(n).tobytes()
            assert (
                _on(count, lambda n=n: resilin.arange(7, 3 * n, 3)).numpy().tobytes()
                == np.arange(7, 3 * n, 3).tobytes()
            )
            down = _on(count, lambda n=n: resilin.arange(n, -n, -2)).numpy()
            assert down.tobytes() == np.arange(n, -n, -2).tobytes()
            line = _on(count, lambda n=n: resilin.linspace(-1, 3, n, dtype=resilin.float64)).numpy()
            step = 4.0 / (n - 1)
            i = np.arange(n)
            expected = np.where(i < n // 2, i * step + -1.0, 3.0 - (n - 1 - i) * step)
            assert line.tobytes() == expected.tobytes()
            short = _on(count, lambda n=n: resilin.linspace(-1, 3, n)).numpy()
            assert short.tobytes() == expected.astype(np.float32).tobytes()


@pytest.mark.parametrize(
    "name", ["bool", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
)
def test_large_tensors_are_filled_with_numbers(name: str) -> None:
    dtype = getattr(resilin, name)
    for n in (8191, 8192, 100_001):
        assert bool((resilin.ones(n, dtype=dtype) == 1).all())
        assert bool((resilin.full((n,), 3, dtype=dtype) == resilin.tensor(3, dtype=dtype)).all())
        assert resilin.ones(n, dtype=dtype).dtype == dtype
    assert bool((resilin.full((9000,), 1 + 2j) == 1 + 2j).all())


def test_tensors_are_equal_and_close_as_numpy_says() -> None:
    r = np.random.default_rng(0)
    for dtype in DTYPES:
        for n in (0, 1, 33, 40_001):
            x = _maker(dtype, n)(n)
            other = x.copy()
            assert resilin.equal(resilin.tensor(x), resilin.tensor(other))
            if n:
                other[n // 2] = not other[n // 2] if dtype is np.bool_ else other[n // 2] + dtype(1)
                assert not resilin.equal(resilin.tensor(x), resilin.tensor(other))
            both = resilin.tensor(np.stack([x, x], 1))
            assert resilin.equal(both[:, 0], both[:, 1])
            assert resilin.equal(both[:, 0], resilin.tensor(x))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-9, 1.0, 1.00001, 3e38, -3e38])
    assert not resilin.equal(resilin.tensor(special), resilin.tensor(special))
    assert resilin.equal(resilin.tensor([0.0]), resilin.tensor([-0.0]))
    for dtype in (np.float32, np.float64):
        x, y = special.astype(dtype)[:, None], special.astype(dtype)
        a = (x + r.normal(size=(10, 1000)) * 1e-5).astype(dtype)
        b = (x + r.normal(size=(10, 1000)) * 1e-5).astype(dtype)
        for p, q in ((x, y), (a, b), (a[:, ::2], b[:, 1::2]), (a, b[:1])):
            for nans in (False, True):
                for rtol, atol in ((1e-5, 1e-8), (0.0, 1e-5), (0.1, 0.0)):
                    with np.errstate(all="ignore"):
                        expected = np.isclose(p, q, rtol, atol, nans)
                    found = resilin.isclose(resilin.tensor(p), resilin.tensor(q), rtol, atol, nans)
                    assert found.numpy().tolist() == expected.tolist()
                    assert resilin.allclose(resilin.tensor(p), resilin.tensor(q), rtol, atol, nans) == expected.all()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_ldexp_of_one_power_is_that_of_many(name: str) -> None:
    dtype = getattr(resilin, name)
    x = (resilin.randn(3000) * 10).to(dtype)
    for power in (0.0, 3.0, -7.0, 0.37, -2.71, 59.5, -61.0, 130.0):
        one = resilin.tensor([power]).to(dtype)
        many = resilin.cat([one.expand(3000)]).clone()
        assert resilin.equal(resilin.ldexp(x, one), resilin.ldexp(x, many)), power
    assert resilin.ldexp(one, x.abs()).shape == x.shape
