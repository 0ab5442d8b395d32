"""Products of matrices by cuBLASLt's interface: geometry, dtypes, epilogues, plans, workspace, what is left to CuPy."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import cuda_emulation
import cupy_standin
import ml_dtypes
import numpy as np
import pytest
import standin_device

import resilin as torch
from resilin.core import float32_matmul
from resilin.core.kernels.cuda import products
from resilin.core.kernels.loader import native
from resilin.errors import AcceleratorError, OutOfMemoryError

pytestmark = pytest.mark.skipif(
    native is None or cuda_emulation.compiler() is None, reason="products go through native code and a null driver"
)

TOLERANCES = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}
DTYPES = {name: np.dtype(name) for name in ("float32", "float64", "float16")} | {
    "bfloat16": np.dtype(ml_dtypes.bfloat16)
}


@pytest.fixture(scope="module")
def backend():
    with pytest.MonkeyPatch.context() as patch:
        yield standin_device.install(patch, cupy_standin.make_module())


@pytest.fixture
def xp(backend):
    backend.xp.plans.clear()
    return backend.xp


@pytest.fixture
def null(backend):
    null = backend.xp.driver.null
    null.reset()
    yield null
    null.reset()


def drawn(xp: Any, *shape: int, dtype: Any = np.float32, seed: int = 0) -> tuple[Any, np.ndarray]:
    """An array of the device, and its values in float64."""
    host = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return xp.array(host), host.astype(np.float64)


def close(found: Any, expected: np.ndarray, dtype: str) -> None:
    assert found.dtype == DTYPES[dtype]
    host = found.get().astype(np.float64)
    assert host.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(host, expected, atol=TOLERANCES[dtype] * scale, rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exchanged", list(itertools.product([False, True], repeat=2)))
def test_each_dtype_and_transposition_is_one_product_of_its_own_kind(xp, null, dtype, exchanged):
    of = DTYPES[dtype]
    x, x_host = drawn(xp, *((5, 7) if exchanged[0] else (7, 5)), dtype=of)
    y, y_host = drawn(xp, *((3, 5) if exchanged[1] else (5, 3)), dtype=of, seed=1)
    if exchanged[0]:
        x, x_host = x.T, x_host.T
    if exchanged[1]:
        y, y_host = y.T, y_host.T
    close(products.matmul(xp, x, y), x_host @ y_host, dtype)
    (made,) = null.products
    assert (made.m, made.n, made.k, made.batches) == (3, 7, 5, 1)
    types = {"float32": (0, 68), "float64": (1, 70), "float16": (2, 68), "bfloat16": (14, 68)}
    assert (made.type, made.compute) == types[dtype]


@pytest.mark.parametrize(
    ("x_shape", "y_shape", "batches"),
    [
        ((1, 1), (1, 1), 1),
        ((31, 1), (1, 33), 1),
        ((1, 33), (33, 1), 1),
        ((4, 3, 5), (4, 5, 2), 4),
        ((2, 3, 4, 5), (2, 3, 5, 6), 6),
        ((2, 3, 4, 5), (5, 6), 1),  # all rows in one
        ((4, 5), (3, 5, 2), 3),
        ((3, 1, 4, 5), (3, 1, 5, 2), 3),
        ((5,), (5,), 1),
        ((5,), (3, 5, 2), 3),
        ((3, 4, 5), (5,), 1),
    ],
)
def test_shapes_are_multiplied_as_by_numpy(xp, null, x_shape, y_shape, batches):
    (x, x_host), (y, y_host) = drawn(xp, *x_shape), drawn(xp, *y_shape, seed=1)
    close(products.matmul(xp, x, y), x_host @ y_host, "float32")
    (made,) = null.products
    assert made.batches == batches


def test_parts_of_arrays_are_multiplied_where_they_lie(xp, null):
    (x, x_host), (y, y_host) = drawn(xp, 9, 12), drawn(xp, 8, 12, seed=1)
    copies = null.launches
    close(products.matmul(xp, x[2:7, 3:9], y[1:5, 2:8].T), x_host[2:7, 3:9] @ y_host[1:5, 2:8].T, "float32")
    assert null.products[0].a == y[1:5, 2:8].data.ptr
    assert null.launches == copies
    into, _ = drawn(xp, 6, 9)
    products.matmul(xp, x[:6, :4], y[:4, :5], into[:, 2:7])
    close(into[:, 2:7], x_host[:6, :4] @ y_host[:4, :5], "float32")


def test_heads_that_do_not_lie_evenly_are_copied_first(xp, null):
    q, q_host = drawn(xp, 2, 6, 3, 4)  # batch, time, heads, width
    q, q_host = q.transpose(0, 2, 1, 3), q_host.transpose(0, 2, 1, 3)
    close(products.matmul(xp, q, q.swapaxes(-1, -2)), q_host @ q_host.swapaxes(-1, -2), "float32")
    assert null.products[0].batches == 6


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((3, 4), np.complex64), np.zeros((4, 2), np.complex64)),
        (np.zeros((3, 4), np.int64), np.zeros((4, 2), np.int64)),
        (np.zeros((3, 4), np.float32), np.zeros((4, 2), np.float64)),
        (np.zeros((0, 4), np.float32), np.zeros((4, 2), np.float32)),
        (np.zeros((3, 0), np.float32), np.zeros((0, 2), np.float32)),
        (np.zeros((2, 1, 3, 4), np.float32), np.zeros((5, 4, 2), np.float32)),  # batches that walk differently
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_what_cublaslt_does_not_multiply_goes_through_cupy(xp, null, x, y):
    assert products.matmul(xp, xp.array(x), xp.array(y)) is None
    found = xp.matmul(xp.array(x), xp.array(y))
    assert found.shape == (x @ y).shape
    assert null.products == []


def test_products_without_an_algorithm_go_through_cupy_also_later(xp, null):
    (x, x_host), (y, y_host) = drawn(xp, 4, 5), drawn(xp, 5, 6, seed=1)
    null.refuse(all=True)
    for _ in range(3):
        close(xp.matmul(x, y), x_host @ y_host, "float32")
    assert (null.asked, null.products) == (1, [])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_linear_layer_with_bias_is_one_launch_forward_and_two_back(backend, xp, null, dtype):
    of = DTYPES[dtype]
    (x, x_host), (w, w_host) = drawn(xp, 7, 5, dtype=of), drawn(xp, 3, 5, dtype=of, seed=1)
    (b, b_host), (g, g_host) = drawn(xp, 3, dtype=of, seed=2), drawn(xp, 7, 3, dtype=of, seed=3)
    close(products.linear(xp, x, w, b), x_host @ w_host.T + b_host, dtype)
    dw, db = products.weight_gradients(xp, g, x)
    close(dw, g_host.T @ x_host, dtype)
    close(db, g_host.sum(0), dtype)
    assert [made.epilogue for made in null.products] == [products.BIAS, products.COLUMN_SUMS]


@pytest.mark.parametrize("refused", [products.BIAS, products.COLUMN_SUMS, products.BIAS | products.COLUMN_SUMS])
def test_a_layer_whose_epilogues_have_no_algorithm_learns_the_same(backend, null, refused):
    def gradients(where: str) -> list[np.ndarray]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(6, 4).to(where)
        layer(torch.ones(3, 6).to(where)).square().sum().backward()
        return [parameter.grad.cpu().numpy() for parameter in layer.parameters()]

    backend.xp.plans.clear()
    null.refuse(refused)
    for ours, expected in zip(gradients("cuda"), gradients("cpu"), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
    assert {made.epilogue for made in null.products} & {refused} == set()


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (products.RELU, lambda x: np.maximum(x, 0)),
        (products.GELU, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_an_activation_is_applied_before_the_result_is_rounded(xp, null, activation, expected):
    (x, x_host), (w, w_host) = drawn(xp, 7, 5, dtype=np.float16), drawn(xp, 3, 5, dtype=np.float16, seed=1)
    b, b_host = drawn(xp, 3, dtype=np.float16, seed=2)
    close(products.linear(xp, x, w, b, activation), expected(x_host @ w_host.T + b_host), "float16")
    close(products.linear(xp, x, w, None, activation), expected(x_host @ w_host.T), "float16")
    assert [made.epilogue for made in null.products] == [products.BIAS | activation, activation]


def test_a_plan_is_made_once_for_shapes_strides_dtype_epilogue_and_precision(xp, null):
    (x, _), (y, _) = drawn(xp, 4, 5), drawn(xp, 5, 6, seed=1)
    for _ in range(3):
        products.matmul(xp, x, y)
    assert (null.asked, len(xp.plans)) == (1, 1)
    products.matmul(xp, x[:3], y)
    products.matmul(xp, xp.ascontiguousarray(x.T).T, y)
    products.matmul(xp, x.astype(np.float64), y.astype(np.float64))
    products.linear(xp, x, y.T, xp.zeros(6, np.float32))
    assert (null.asked, len(xp.plans)) == (5, 5)


def test_the_plans_that_are_kept_are_bounded(xp, null, monkeypatch):
    monkeypatch.setattr(products, "PLANS", 4)
    for rows in range(1, 10):
        x, host = drawn(xp, rows, 3)
        close(products.matmul(xp, x, x.T), host @ host.T, "float32")
    assert len(xp.plans) <= 4


def test_operands_that_are_less_aligned_get_an_algorithm_of_their_own(xp, null):
    whole, host = drawn(xp, 101)
    x, x_host = whole[1:].reshape(10, 10), host[1:].reshape(10, 10)  # 4 bytes after a boundary, as a view is
    aligned = xp.array(x.get())
    assert aligned.data.ptr % 16 == 0
    for one in (aligned, x, aligned, x):
        close(products.matmul(xp, one, one), x_host @ x_host, "float32")  # the null driver refuses a broken promise
    assert (null.asked, len(xp.plans)) == (2, 1)


def test_tf32_is_used_when_it_is_allowed_and_only_for_float32(xp, null, monkeypatch):
    monkeypatch.setattr(float32_matmul, "_kept", ["highest"])
    x, host = drawn(xp, 8, 8)
    exact = products.matmul(xp, x, x).get()
    torch.set_float32_matmul_precision("high")
    assert torch.backends.cuda.matmul.allow_tf32 is True
    rounded = products.matmul(xp, x, x).get()
    products.matmul(xp, x.astype(np.float16), x.astype(np.float16))
    torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.get_float32_matmul_precision() == "highest"
    np.testing.assert_array_equal(products.matmul(xp, x, x).get(), exact)
    assert [made.compute for made in null.products] == [68, 77, 68, 68]
    assert 1e-6 < np.abs(rounded - host @ host).max() < 1e-2


def test_deep_products_get_a_workspace_for_each_stream(backend, xp, null, monkeypatch):
    driver, of = backend.xp.driver, []
    (x, x_host), (y, y_host) = drawn(xp, 4, 300), drawn(xp, 300, 4, seed=1)
    driver.workspaces.clear()
    products.matmul(xp, x[:, :8], y[:8])
    assert null.products[-1].workspace is None  # none is made for what needs none
    for stream in (0xA0, 0xB0, 0xA0):
        monkeypatch.setattr(cupy_standin._Stream, "ptr", stream)
        close(products.matmul(xp, x, y), x_host @ y_host, "float32")
        made = null.products[-1]
        of.append((made.stream, made.workspace))
        assert made.workspace_bytes == 1 << 20  # what the algorithm asks for, of what there is
    assert [stream for stream, _ in of] == [0xA0, 0xB0, 0xA0]
    assert of[0] == of[2]
    assert of[0][1] != of[1][1]
    assert sorted(driver.workspaces) == [0xA0, 0xB0]
    assert {memory.nbytes for memory in driver.workspaces.values()} == {32 << 20}


def test_the_size_of_the_workspace_is_pytorchs_variable(null, monkeypatch):
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "512")  # KiB: less than deep products want, so they have no algorithm
    with pytest.MonkeyPatch.context() as patch:
        small = standin_device.install(patch, cupy_standin.make_module()).xp
        (x, x_host), (y, y_host) = drawn(small, 4, 300), drawn(small, 300, 4, seed=1)
        assert small.driver.workspace_bytes == 512 << 10
        assert products.matmul(small, x, y) is None
        close(small.matmul(x, y), x_host @ y_host, "float32")


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (13, AcceleratorError, r"cublasLtMatmul, launched on stream 0x0: CUBLAS_STATUS_EXECUTION_FAILED \(13\)"),
        (3, OutOfMemoryError, r"cublasLtMatmul.*CUBLAS_STATUS_ALLOC_FAILED \(3\).*smaller batches"),
    ],
)
def test_a_product_that_fails_says_what_and_where(xp, null, status, error, said):
    x, _ = drawn(xp, 4, 4)
    null.fail(status)
    with pytest.raises(error, match=said):
        products.matmul(xp, x, x)
    assert products.matmul(xp, x, x) is not None


def test_matrices_that_follow_one_another_backwards_are_copied_and_too_many_are_cupys(xp, null):
    x, x_host = drawn(xp, 3, 2, 4)
    close(
        products.matmul(xp, x[::-1], xp.array(x_host.swapaxes(1, 2).astype("f"))),
        x_host[::-1] @ x_host.swapaxes(1, 2),
        "float32",
    )
    assert null.products[-1].batches == 3
    many = xp.zeros((65_536, 1, 1), np.float32)
    assert products.matmul(xp, many[1:], many[1:]).shape == (65_535, 1, 1)
    assert products.matmul(xp, many, many) is None
    assert xp.matmul(many, many).shape == many.shape


def test_rows_of_several_dimensions_are_one_matrix_up_to_the_longest_that_there_is():
    def laid(samples: int) -> Any:
        x, made = ((samples, 1 << 15, 2), (2 << 15, 2, 1)), ((samples, 1 << 15, 1), (1 << 15, 1, 1))
        return products._laid_out(x, ((2, 1), (1, 1)), made)

    count, (of_x, _, _) = laid((1 << 16) - 1)
    assert (count, of_x[:2]) == (1, (2, ((1 << 16) - 1) << 15))
    assert laid(1 << 16) is None  # 65,536 products: more than one call takes


def test_a_product_that_is_refused_when_it_is_launched_goes_through_cupy(xp, null):
    x, host = drawn(xp, 4, 4)
    null.fail(15)
    for _ in range(2):
        close(xp.matmul(x, x), host @ host, "float32")
    assert (null.asked, null.products) == (1, [])


def test_cublaslt_starts_with_the_first_product_when_the_device_is_chosen(null):
    with pytest.MonkeyPatch.context() as patch:
        xp = standin_device.install(patch, cupy_standin.make_module()).xp
        x, _ = drawn(xp, 4, 4)
        assert null.created == 0
        for rows in (2, 3, 4):
            products.matmul(xp, x[:rows], x)
        assert null.created == 1


def test_without_a_driver_cupy_multiplies(xp):
    x, _host = drawn(xp, 4, 4)
    without = SimpleNamespace(driver=None)
    assert products.matmul(without, x, x) is None
    assert products.linear(without, x, x, None) is None
