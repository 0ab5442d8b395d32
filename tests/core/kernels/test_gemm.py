"""Matrix products: numpy's values, for every layout, and the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from resilin.core.kernels import gemm
from resilin.core.kernels.loader import native
from resilin.core.machine import threads

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


LAYOUTS = {
    "contiguous": lambda lead, m, n, dtype: drawn(*lead, m, n, dtype=dtype),
    "transposed": lambda lead, m, n, dtype: drawn(*lead, n, m, dtype=dtype).swapaxes(-1, -2),
    "part of wider rows": lambda lead, m, n, dtype: drawn(*lead, m, 2 * n, dtype=dtype)[..., :n],
    "every other column": lambda lead, m, n, dtype: drawn(*lead, m, 2 * n, dtype=dtype)[..., ::2],
    "reversed rows": lambda lead, m, n, dtype: drawn(*lead, m, n, dtype=dtype)[..., ::-1, :],
    "heads between rows": lambda lead, m, n, dtype: np.moveaxis(drawn(m, *lead, n, dtype=dtype), 0, -2),
    "broadcast": lambda lead, m, n, dtype: np.broadcast_to(drawn(n, dtype=dtype), (*lead, m, n)),
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("lead", [(), (2,), (3, 2)])
def test_every_layout_gives_numpys_product(left: str, right: str, lead: tuple[int, ...]) -> None:
    for M, K, N in ((3, 5, 4), (1, 7, 9), (8, 1, 2), (33, 17, 1)):
        a, b = LAYOUTS[left](lead, M, K, "float64"), LAYOUTS[right](lead, K, N, "float64")
        np.testing.assert_allclose(gemm.matmul(a, b), np.matmul(a, b), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "shapes", [((3, 1, 4, 5), (2, 5, 6)), ((4, 5), (3, 5, 6)), ((2, 4, 5), (5, 6)), ((2, 4, 5), (5,))]
)
def test_leading_dimensions_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (drawn(*shape, dtype="float64") for shape in shapes)
    np.testing.assert_allclose(gemm.matmul(a, b), np.matmul(a, b), rtol=1e-12)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 4))])
def test_empty_products_are_zeros_or_empty(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (drawn(*shape) for shape in shapes)
    assert np.array_equal(gemm.matmul(a, b), np.matmul(a, b))


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("int64", "int64"), ("complex64", "complex64")])
def test_other_dtypes_are_numpys(dtypes: tuple[str, str]) -> None:
    a, b = drawn(3, 4).astype(dtypes[0]), drawn(4, 5).astype(dtypes[1])
    y = gemm.matmul(a, b)
    assert y.dtype == np.result_type(a, b)
    assert np.array_equal(y, np.matmul(a, b))


def test_the_product_is_written_where_out_says_and_nowhere_else() -> None:
    whole = np.full((6, 10), 7, np.float32)
    a, b = drawn(4, 3), drawn(3, 5)
    assert gemm.matmul(a, b, whole[1:5, 2:7]) is not None
    np.testing.assert_allclose(whole[1:5, 2:7], np.matmul(a, b), rtol=1e-5)
    whole[1:5, 2:7] = 7
    assert (whole == 7).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="mismatch"):
        gemm.matmul(drawn(2, 3), drawn(4, 5))


def test_an_output_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mismatch|broadcast"):
        gemm.matmul(drawn(2, 3), drawn(3, 5), np.empty((2, 4), np.float32))


needs_native = pytest.mark.skipif(native is None, reason="without native code numpy calls its BLAS")
SHAPES = [(1024, 784, 1000), (128, 784, 1023), (2000, 300, 77), (64, 3000, 64), (515, 9, 2), (3, 5000, 33), (29, 1, 47)]
CROWDED = [(40, 300, 1024), (14, 512, 512), (27, 70, 1536)]  # rows of b share a few sets of the first cache


@needs_native
@pytest.mark.parametrize(("M", "K", "N"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_do_not_depend_on_the_number_of_threads(M: int, K: int, N: int, dtype: str) -> None:
    a, b = drawn(M, K, dtype=dtype), drawn(N, K, dtype=dtype).T
    products = []
    for count in (1, 2, 3, 5):
        threads.set_num_threads(count)
        products.append(gemm.matmul(a, b))
    assert all(np.array_equal(products[0], other) for other in products[1:])


@needs_native
@pytest.mark.parametrize(("M", "K", "N"), [*SHAPES, *CROWDED])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_do_not_depend_on_the_instruction_set(M: int, K: int, N: int, turned: bool, dtype: str) -> None:
    a, b = drawn(M, K, dtype=dtype), drawn(N, K, dtype=dtype).T
    b = b if turned else np.ascontiguousarray(b)
    products = {}
    try:
        for name in ("avx512", "avx2", "portable"):
            # a CPU without fused multiply-adds has the portable tiles only, and they round twice there
            if native.use_tiles(name):
                products[name] = gemm.matmul(a, b)
    finally:
        native.use_tiles("")
    np.testing.assert_allclose(products["portable"], np.matmul(a, b), rtol=1e-4, atol=1e-3)
    fused = [products[name] for name in ("avx512", "avx2") if name in products]
    assert all(np.array_equal(fused[0], other) for other in fused[1:])


@needs_native
def test_a_row_has_the_same_bits_whatever_the_other_rows_and_the_strides() -> None:
    a, b = drawn(300, 1200), drawn(1200, 150)
    whole = gemm.matmul(a, b)
    assert np.array_equal(gemm.matmul(a[17:60], b), whole[17:60])
    assert np.array_equal(gemm.matmul(a[::-3], b), whole[::-3])
    assert np.array_equal(gemm.matmul(np.asfortranarray(a), b[:, 20:99]), whole[:, 20:99])
    wider = np.zeros((300, 2400), np.float32)
    wider[:, ::2] = a
    assert np.array_equal(gemm.matmul(wider[:, ::2], b), whole)


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("K", "N"), [(1, 40), (784, 35), (1200, 129)])
def test_few_rows_by_a_turned_matrix_have_the_bits_of_the_matrix_that_is_not_turned(K: int, N: int, dtype: str) -> None:
    w, bias = drawn(N, K, dtype=dtype), drawn(N, dtype=dtype)
    straight = np.ascontiguousarray(w.T)
    for M in range(2, 36):
        a = drawn(M, K, dtype=dtype)
        assert np.array_equal(gemm.matmul(a, w.T), gemm.matmul(a, straight)), M
        assert np.array_equal(gemm.matmul_add(a, w.T, bias), gemm.matmul_add(a, straight, bias)), M
        wider = np.full((M, N + 3), 7, dtype)
        gemm.matmul(a, w.T, wider[:, 1:-2])
        assert np.array_equal(wider[:, 1:-2], gemm.matmul(a, straight)), M
        assert (wider[:, [0, -2, -1]] == 7).all()


@pytest.fixture(params=["", "avx512", "avx2"])
def fused_tiles(request: pytest.FixtureRequest) -> Iterator[str]:
    if native is None or not native.use_tiles(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    native.use_tiles("")


@needs_native
@pytest.mark.usefixtures("fused_tiles")
@pytest.mark.parametrize(("K", "N"), [(1, 16), (15, 17), (33, 31), (512, 40), (784, 40), (400, 300), (1030, 129)])
def test_few_rows_have_the_bits_that_they_have_among_many(K: int, N: int) -> None:
    a, w, bias = drawn(200, K), drawn(N, K), drawn(N)
    a[1, K // 2], w[N - 1, 0] = np.inf, np.nan
    wider = np.zeros((N, 2 * K), np.float32)
    wider[:, :K] = w
    matrices = {"turned": w.T, "turned part": wider[:, :K].T, "straight": np.ascontiguousarray(w.T)}
    with np.errstate(invalid="ignore"):
        whole, sums = gemm.matmul(a, w.T), gemm.matmul_add(a, w.T, bias)
    for M in range(2, 17):
        for name, b in matrices.items():
            for some in (a[:M], np.asfortranarray(a[:M]), np.repeat(a[:M], 2, axis=1)[:, ::2]):
                np.testing.assert_array_equal(gemm.matmul(some, b), whole[:M], err_msg=f"{M} {name}")
                np.testing.assert_array_equal(gemm.matmul_add(some, b, bias), sums[:M], err_msg=f"{M} {name}")


@needs_native
def test_few_rows_do_not_depend_on_the_number_of_threads() -> None:
    a, w, bias = drawn(9, 600), drawn(1501, 600), drawn(1501)
    threads.set_num_threads(1)
    alone = gemm.matmul_add(a, w.T, bias)
    for count in (2, 3):
        threads.set_num_threads(count)
        assert np.array_equal(gemm.matmul_add(a, w.T, bias), alone)
    threads.set_num_threads(2)
    w = drawn(1 << 20, 3)
    assert np.array_equal(gemm.matmul(a[:2, :3], np.ascontiguousarray(w.T)), gemm.matmul(a[:, :3], w.T)[:2])


def test_an_output_that_is_an_operand_gets_the_product_of_what_was_there() -> None:
    a, b = drawn(200, 200), drawn(200, 200)
    expected = np.matmul(a, b)
    gemm.matmul(a, b, out=a)
    np.testing.assert_allclose(a, expected, rtol=1e-4, atol=1e-3)


def test_infinities_and_nans_reach_the_elements_that_they_belong_to_only() -> None:
    a, b = drawn(40, 50), drawn(50, 60)
    a[3, 7], a[5, 9], b[11, 13] = np.nan, np.inf, np.nan
    with np.errstate(invalid="ignore"):  # numpy's own product says something
        y = gemm.matmul(a, b)
    wrong = np.zeros((40, 60), bool)
    wrong[3], wrong[5], wrong[:, 13] = True, True, True
    assert np.array_equal(~np.isfinite(y), wrong)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("size", [(2, 2, 2), (8, 8, 8), (5, 3, 7), (16, 16, 16), (16, 1, 9), (3, 16, 4), (7, 13, 12)])
def test_many_small_products_have_the_bits_of_large_ones(size: tuple[int, int, int], right: str, dtype: str) -> None:
    m, k, n = size
    a, b = drawn(5, m, k, dtype=dtype), LAYOUTS[right]((5,), k, n, dtype)
    found = gemm.matmul(a, b)
    for i in range(5):  # one product alone goes by panels and tiles
        np.testing.assert_array_equal(found[i], gemm.matmul(a[i], b[i]), err_msg=f"{i}")
    np.testing.assert_allclose(found, np.matmul(a.astype("float64"), b.astype("float64")), 0, 1e-4)
    few, shared = gemm.matmul(a[:, None], b[None]), gemm.matmul(a, b[0])
    np.testing.assert_array_equal(few[1, 2], gemm.matmul(a[1], b[2]))
    np.testing.assert_array_equal(shared[3], gemm.matmul(a[3], b[0]))


def test_many_small_products_do_not_depend_on_the_number_of_threads() -> None:
    a, b = drawn(3000, 8, 8), drawn(3000, 8, 8)
    threads.set_num_threads(1)
    alone = gemm.matmul(a, b)
    threads.set_num_threads(2)
    np.testing.assert_array_equal(gemm.matmul(a, b), alone)
