"""Products of bfloat16 and float16: summed as documented and rounded once, whatever tiles and layouts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import resilin as torch
import resilin.nn.functional as F
from resilin.core.kernels import gemm, pack
from resilin.core.kernels.loader import native
from resilin.core.machine import threads

RNG = np.random.default_rng(0)
HALVES = [pack.BFLOAT16, np.dtype(np.float16)]
BLOCK = 384  # of the depth of float16, at most: 1536 bytes of float32
GROUP = 32  # of the depth of bfloat16
TILES = ["amx", "avx512_bf16", "avx512", "avx2", "portable"]
needs_native = pytest.mark.skipif(native is None, reason="without native code numpy calls its BLAS")
of_both = pytest.mark.parametrize("dtype", HALVES, ids=str)


@pytest.fixture(autouse=True)
def same_threads_and_tiles_afterwards() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)
    if native is not None:
        native.use_tiles("")


def drawn(dtype: np.dtype, *shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32).astype(dtype)


def bits(x: np.ndarray) -> list[int]:
    assert x.dtype.itemsize == 2
    return np.ascontiguousarray(x).view(np.uint16).tolist()


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)


LAYOUTS = {
    "contiguous": lambda dtype, m, n: drawn(dtype, m, n),
    "transposed": lambda dtype, m, n: drawn(dtype, n, m).T,
    "part of wider rows": lambda dtype, m, n: drawn(dtype, m, n + 3)[:, 1 : n + 1],
    "every other column": lambda dtype, m, n: drawn(dtype, m, 2 * n)[:, ::2],
    "reversed": lambda dtype, m, n: drawn(dtype, m, n)[::-1, ::-1],
    "broadcast": lambda dtype, m, n: np.broadcast_to(drawn(dtype, n), (m, n)),
}
SHAPES = [(1, 1, 1), (3, 5, 4), (1, 70, 33), (37, 33, 1), (2, 1, 2), (15, 131, 17), (29, 385, 35), (64, 771, 97)]


@of_both
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_every_layout_gives_the_product_of_the_float32_numbers_rounded_once(
    dtype: np.dtype, left: str, right: str
) -> None:
    for M, K, N in SHAPES:
        a, b = LAYOUTS[left](dtype, M, K), LAYOUTS[right](dtype, K, N)
        y = gemm.matmul(a, b)
        assert y.dtype == dtype
        assert y.shape == (M, N)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        weight = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
        unit = 2.0**-8 if dtype == pack.BFLOAT16 else 2.0**-11
        assert (np.abs(y.astype(np.float64) - exact) <= unit * np.abs(exact) + K * 2.0**-24 * weight + 2.0**-25).all()
        if native is not None and min(M, N) > 1:  # numpy's vectors are summed otherwise
            assert bits(y) == bits(summed(a, b) if dtype == pack.BFLOAT16 else gemm.reference_halves(a, b))


def chain(a: np.ndarray, b: np.ndarray, steps: range) -> np.ndarray:
    """One chain of fused multiply-adds from zero."""
    part = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in steps:
        # exact in float64, whose sum is rounded once: of numbers near one
        part = (a[:, k : k + 1].astype(np.float64) * b[k].astype(np.float64) + part).astype(np.float32)
    return part


def summed(a: np.ndarray, b: np.ndarray, c_N: np.ndarray | float = 0) -> np.ndarray:
    """a @ b + c_N in the documented order of sums.

    bfloat16: groups of the depth, ascending, are added to `c_N`: the chain of a group's even steps plus that of its odd
    ones. float16: blocks of the depth, ascending, each one chain, the first added to `c_N`.
    """
    K, total = a.shape[1], np.zeros((a.shape[0], b.shape[1]), np.float32) + np.asarray(c_N, np.float32)
    if a.dtype == pack.BFLOAT16:
        for k in range(0, K, GROUP):
            end = min(K, k + GROUP)
            total = total + (chain(a, b, range(k, end, 2)) + chain(a, b, range(k + 1, end, 2)))
    else:
        blocks = -(-K // BLOCK)
        for block in range(blocks):
            total = total + chain(a, b, range(K * block // blocks, K * (block + 1) // blocks))
    return pack.astype(total, a.dtype)


@needs_native
@of_both
@pytest.mark.parametrize(
    ("M", "K", "N"), [(5, 9, 7), (17, 384, 3), (4, 385, 40), (3, 1531, 18), (1, 770, 5), (6, 901, 1)]
)
def test_sums_are_made_in_the_documented_order(dtype: np.dtype, M: int, K: int, N: int) -> None:
    a, b = drawn(dtype, M, K), drawn(dtype, K, N)
    c = drawn(dtype, N)
    assert bits(gemm.matmul(a, b)) == bits(summed(a, b))
    assert bits(gemm.matmul_add(a, b, c)) == bits(summed(a, b, wide(c)))


@needs_native
@pytest.mark.parametrize("tiles", TILES)
def test_products_of_bfloat16_of_any_size_and_layout_have_the_documented_bits_with_all_tiles(tiles: str) -> None:
    if not native.use_tiles(tiles):
        pytest.skip("not on this CPU")
    sizes, layouts = np.random.default_rng(5), list(LAYOUTS.values())
    for case in range(60):
        M, K, N = sizes.integers(1, 71, 3).tolist() if case % 6 else sizes.integers(70, 300, 3).tolist()
        a = layouts[case % len(layouts)](pack.BFLOAT16, M, K)
        b = layouts[case // len(layouts) % len(layouts)](pack.BFLOAT16, K, N)
        c = drawn(pack.BFLOAT16, N)
        threads.set_num_threads(1 + case % 2)
        assert bits(gemm.matmul(a, b)) == bits(summed(a, b)), (M, K, N)
        assert bits(gemm.matmul_add(a, b, c)) == bits(summed(a, b, wide(c))), (M, K, N)


@needs_native
def test_what_a_kernel_cannot_read_or_write_where_it_lies_has_the_same_bits() -> None:
    a, b = drawn(pack.BFLOAT16, 9, 70), drawn(pack.BFLOAT16, 70, 12)
    expected = bits(gemm.matmul(a, b))
    crooked = np.zeros(2 * a.size + 1, np.uint8)[1:].view(pack.BFLOAT16).reshape(a.shape)
    crooked[...] = a
    assert bits(gemm.matmul(crooked, b)) == expected
    every_other = np.zeros((9, 24), pack.BFLOAT16)
    gemm.matmul(a, b, out=every_other[:, ::2])
    assert bits(every_other[:, ::2]) == expected
    c = drawn(pack.BFLOAT16, 12)
    assert bits(gemm.matmul_add(crooked, b, c)) == bits(gemm.matmul_add(a, b, c))


@needs_native
def test_tiles_of_amx_are_refused_where_the_cpu_has_none() -> None:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    assert not native.use_tiles("amx") or {"amx_tile", "amx_bf16"} <= set(flags)


@needs_native
@of_both
@pytest.mark.parametrize(("M", "K", "N"), [(300, 300, 77), (64, 3000, 64), (1, 5001, 33), (515, 9, 2), (29, 1, 47)])
def test_bits_depend_neither_on_the_tiles_nor_on_the_number_of_threads(dtype: np.dtype, M: int, K: int, N: int) -> None:
    a, b, c = drawn(dtype, M, K), drawn(dtype, N, K).T, drawn(dtype, N)
    expected = bits(gemm.matmul_add(a, b, c))
    for name in TILES:
        if native.use_tiles(name):
            for count in (1, 2, 3):
                threads.set_num_threads(count)
                assert bits(gemm.matmul_add(a, b, c)) == expected, (name, count)


@needs_native
@of_both
def test_a_row_has_the_same_bits_whatever_the_other_rows(dtype: np.dtype) -> None:
    a, b = drawn(dtype, 90, 1201), drawn(dtype, 1201, 150)
    whole = gemm.matmul(a, b)
    assert bits(gemm.matmul(a[17:60], b)) == bits(whole[17:60])
    assert bits(gemm.matmul(a[::-3], b)) == bits(whole[::-3])
    assert bits(gemm.matmul(a[5], b)) == bits(whole[5])
    assert bits(gemm.matmul(a, b[:, 7])) == bits(whole[:, 7])
    assert bits(gemm.matmul(np.asfortranarray(a), b[:, 20:99])) == bits(whole[:, 20:99])


@needs_native
@of_both
def test_sums_of_more_rows_and_columns_than_wait_at_once_are_the_same(dtype: np.dtype) -> None:
    a, b = drawn(dtype, 1030, 400), drawn(dtype, 400, 1100)
    whole = gemm.matmul(a, b)
    assert bits(whole[:8]) == bits(gemm.matmul(a[:8], b))
    assert bits(whole[:, -9:]) == bits(gemm.matmul(a, b[:, -9:]))


@of_both
@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 1, 4, 5), (2, 5, 6)),
        ((4, 5), (3, 5, 6)),
        ((2, 4, 5), (5, 6)),
        ((2, 4, 5), (5,)),
        ((5,), (3, 5, 2)),
        ((5,), (5,)),
    ],
)
def test_leading_dimensions_broadcast(dtype: np.dtype, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (drawn(dtype, *shape) for shape in shapes)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    y = gemm.matmul(a, b)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2.0**-7, atol=1e-2)


@of_both
@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 4))])
def test_empty_products_are_zeros_or_empty(dtype: np.dtype, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (drawn(dtype, *shape) for shape in shapes)
    y = gemm.matmul(a, b)
    assert y.dtype == dtype
    assert np.array_equal(wide(y), np.matmul(wide(a), wide(b)))


@of_both
def test_the_product_is_written_where_out_says_and_nowhere_else(dtype: np.dtype) -> None:
    whole = np.full((6, 10), 7, np.float32).astype(dtype)
    a, b = drawn(dtype, 4, 3), drawn(dtype, 3, 5)
    gemm.matmul(a, b, whole[1:5, 2:7])
    assert bits(whole[1:5, 2:7]) == bits(gemm.matmul(a, b))
    whole[1:5, 2:7] = 7
    assert (wide(whole) == 7).all()


@of_both
def test_an_output_that_is_an_operand_gets_the_product_of_what_was_there(dtype: np.dtype) -> None:
    a, b = drawn(dtype, 40, 40), drawn(dtype, 40, 40)
    expected = gemm.matmul(a, b)
    assert gemm.matmul(a, b, out=a) is a
    assert bits(a) == bits(expected)


@of_both
def test_shapes_that_do_not_fit_are_refused(dtype: np.dtype) -> None:
    with pytest.raises(ValueError, match="mismatch"):
        gemm.matmul(drawn(dtype, 2, 3), drawn(dtype, 4, 5))


@of_both
def test_beside_float32_the_product_is_float32(dtype: np.dtype) -> None:
    a, b = drawn(dtype, 3, 4), drawn(np.dtype(np.float32), 4, 5)
    assert np.array_equal(gemm.matmul(a, b), gemm.matmul(wide(a), b))
    assert gemm.matmul(a, b).dtype == np.float32


@of_both
@pytest.mark.parametrize("tiles", TILES)
def test_infinities_and_nans_reach_the_elements_that_they_belong_to_only(dtype: np.dtype, tiles: str) -> None:
    if native is None or not native.use_tiles(tiles):
        pytest.skip("without native code, or not on this CPU")
    a, b = drawn(dtype, 40, 51), drawn(dtype, 51, 60)
    a[3, 7], a[5, 50], b[11, 13] = np.nan, np.inf, np.nan
    y = wide(gemm.matmul(a, b))
    wrong = np.zeros((40, 60), bool)
    wrong[3], wrong[5], wrong[:, 13] = True, True, True
    assert np.array_equal(~np.isfinite(y), wrong)
    assert np.isinf(y[5, :13]).all()


@needs_native
@pytest.mark.parametrize("tiles", TILES)
def test_bfloat16_takes_subnormal_numbers_as_zero_and_gives_none(tiles: str) -> None:
    if not native.use_tiles(tiles):
        pytest.skip("not on this CPU")
    tiny, small = 2.0**-130, 2.0**-65
    a = np.array([[tiny, 0], [small, 0], [small, 1], [1, 2.0**-126]], np.float32).astype(pack.BFLOAT16)
    b = np.array([[2.0**100, 2.0**-64], [1.0, 0.5]], np.float32).astype(pack.BFLOAT16)
    expected = np.array([[0, 0], [2.0**35, 0], [2.0**35 + 1, 0.5], [2.0**100, 2.0**-64]], np.float32)
    assert bits(gemm.matmul(a, b)) == bits(expected.astype(pack.BFLOAT16))
    subnormal = np.array([[2.0**-126, 2.0**-127]], np.float32)
    assert subnormal[0, 1] / 2 > 0  # other computations keep theirs


def test_float16_keeps_its_subnormal_numbers() -> None:
    a = np.array([[2.0**-24, 0], [2.0**-20, 2.0**-24]], np.float16)
    b = np.array([[1, 2], [1, 3]], np.float16)
    assert gemm.matmul(a, b).tolist() == [[2.0**-24, 2.0**-23], [2.0**-20 + 2.0**-24, 2.0**-19 + 3 * 2.0**-24]]


@needs_native
def test_random_bits_give_the_same_bits_with_all_tiles() -> None:
    a, b = (RNG.integers(0, 1 << 16, shape).astype(np.uint16).view(pack.BFLOAT16) for shape in ((33, 7), (7, 35)))
    found = []
    for name in TILES[:-1]:  # portable ones may round a product that is subnormal, too
        if native.use_tiles(name):
            y = gemm.matmul(a, b)
            found.append(np.where(np.isnan(wide(y)), 0x7FC0, y.view(np.uint16)))
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shapes", [((7, 9), (9, 5)), ((2, 7, 9), (9, 5)), ((3, 7, 9), (3, 9, 5)), ((9,), (9, 5))])
def test_gradients_of_a_product_are_those_of_the_float32_numbers_rounded_once(
    dtype: torch.dtype, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    torch.manual_seed(0)
    halves = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    singles = [x.detach().float().requires_grad_() for x in halves]
    y, expected = halves[0] @ halves[1], singles[0] @ singles[1]
    g = torch.randn(y.shape).to(dtype)
    y.backward(g)
    expected.backward(g.float())
    assert y.dtype is dtype
    for half, single in zip(halves, singles, strict=True):
        assert half.grad.dtype is dtype
        torch.testing.assert_close(half.grad, single.grad.to(dtype), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_linear_layer_and_its_gradients_round_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w, b = (torch.randn(shape).to(dtype).requires_grad_() for shape in ((4, 6, 10), (8, 10), (8,)))
    wide_x, wide_w, wide_b = (part.detach().float().requires_grad_() for part in (x, w, b))
    y, expected = F.linear(x, w, b), F.linear(wide_x, wide_w, wide_b)
    assert torch.equal(y, expected.to(dtype))
    g = torch.randn(y.shape).to(dtype)
    y.backward(g)
    expected.backward(g.float())
    for half, single in ((x, wide_x), (w, wide_w), (b, wide_b)):
        assert torch.equal(half.grad, single.grad.to(dtype))


@needs_native
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("extent", ["usual", "subnormal", "special"])
def test_many_small_products_have_the_bits_of_each_alone(dtype, extent):
    torch.manual_seed(0)
    for m, k, n in [
        (8, 8, 8),
        (1, 1, 1),
        (2, 1, 3),
        (3, 2, 4),
        (4, 3, 5),
        (5, 7, 16),
        (16, 16, 16),
        (7, 15, 9),
        (1, 16, 2),
    ]:
        a, b = (torch.randn(5, rows, columns) for rows, columns in ((m, k), (k, n)))
        if extent == "subnormal":
            a, b = a * 2.0**-100, b * (2.0**-30 if dtype is torch.bfloat16 else 2.0**78)
        if extent == "special":
            a.view(-1)[0], a.view(-1)[-1], b.view(-1)[0], b.view(-1)[-1] = float("inf"), -0.0, float("nan"), 0.0
        a, b = a.to(dtype), b.to(dtype)
        turned = b.mT.contiguous().mT
        among = torch.zeros(5, m, n + 3, dtype=dtype)
        assert native.matmul(a._array, b._array, among[:, :, 1 : n + 1]._array, None) is not None
        for i in range(5):
            alone = (a[i] @ b[i]).view(torch.int16)
            assert torch.equal((a @ b)[i].view(torch.int16), alone), (m, k, n)
            assert torch.equal((a @ turned)[i].view(torch.int16), alone), (m, k, n)
            assert torch.equal(among[i, :, 1 : n + 1].contiguous().view(torch.int16), alone), (m, k, n)


@needs_native
@pytest.mark.parametrize("K", [1, 31, 64, 3000])
def test_sums_that_are_not_rounded_are_those_that_a_product_rounds_with_all_tiles(K: int) -> None:
    for M, N in [(1, 33), (70, 1), (2, 2), (61, 77), (1100, 40)]:
        a, b, c = drawn(pack.BFLOAT16, M, K), drawn(pack.BFLOAT16, N, K).T, drawn(pack.BFLOAT16, N)
        native.use_tiles("")
        plain, added = gemm.matmul_wide(a, b, None), gemm.matmul_wide(a, b, wide(c))
        assert plain.dtype == added.dtype == np.float32
        assert bits(pack.to_bfloat16(plain)) == bits(gemm.matmul(a, b))
        assert bits(pack.to_bfloat16(added)) == bits(gemm.matmul_add(a, b, c))
        for name in TILES:
            if native.use_tiles(name):
                for count in (1, 2, 3):
                    threads.set_num_threads(count)
                    assert gemm.matmul_wide(a, b, wide(c)).tobytes() == added.tobytes(), (name, count, M, N)


def test_sums_that_are_not_rounded_of_nothing_are_what_is_added() -> None:
    c = np.array([1.5, -2.0], np.float32)
    assert (
        gemm.matmul_wide(np.ones((3, 0), pack.BFLOAT16), np.ones((0, 2), pack.BFLOAT16), c).tolist()
        == [[1.5, -2.0]] * 3
    )
    assert gemm.matmul_wide(np.ones((0, 4), pack.BFLOAT16), np.ones((4, 2), pack.BFLOAT16), c).shape == (0, 2)
