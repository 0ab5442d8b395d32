"""What choosing, sorting and elementwise functions do with NaN, with 0-d tensors and with integers, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin import Tensor, tensor

NAN, INF = float("nan"), float("inf")

same = np.testing.assert_array_equal


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.bfloat16, resilin.float16, resilin.float64])
def test_the_median_of_numbers_with_nan_is_nan(dtype: Any) -> None:
    x = tensor([[1.0, NAN, 2.0], [3.0, 1.0, 2.0]], dtype=dtype)
    assert x[0].median().isnan().item()
    values, indices = x.median(1)
    same(values.float().numpy(), [NAN, 2])
    assert indices.tolist() == [1, 2]
    same(x.median(0, keepdim=True).values.float().numpy(), [[1, NAN, 2]])


def test_the_median_of_nothing_is_nan_and_along_an_empty_dimension_an_error() -> None:
    assert resilin.zeros(0).median().isnan().item()
    with pytest.raises(IndexError, match="non-zero size"):
        resilin.zeros(0, 2).median(0)


def test_the_gradient_of_a_median_goes_to_the_element_chosen() -> None:
    x = tensor([[3.0, 1.0, 2.0], [1.0, NAN, 2.0]], requires_grad=True)
    x.median(1).values.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 0, 1], [0, 1, 0]]


def test_unique_keeps_nans_apart() -> None:
    values, inverse, counts = resilin.unique(tensor([NAN, 1.0, NAN, 1.0]), return_inverse=True, return_counts=True)
    same(values.numpy(), [1, NAN, NAN])
    assert inverse.tolist() == [1, 0, 2, 0]
    assert counts.tolist() == [2, 1, 1]


@pytest.mark.parametrize("dtype", [resilin.float16, resilin.bfloat16, resilin.float32, resilin.float64])
def test_nan_to_num_writes_the_limits_of_every_floating_dtype(dtype: Any) -> None:
    found = resilin.nan_to_num(tensor([NAN, INF, -INF, 1.0], dtype=dtype))
    limits = resilin.finfo(dtype)
    assert found.dtype == dtype
    assert found.tolist() == [0, limits.max, limits.min, 1]


@pytest.mark.parametrize("dtype", [resilin.int8, resilin.uint8, resilin.int32, resilin.int64, resilin.bool])
def test_nan_to_num_of_integers_is_a_copy(dtype: Any) -> None:
    x = tensor([0, 1]).to(dtype)
    found = resilin.nan_to_num(x)
    assert found.dtype == dtype
    assert found.tolist() == x.tolist()
    assert found.data_ptr() != x.data_ptr()


def test_nan_to_num_of_complex_numbers_replaces_in_both_parts() -> None:
    found = resilin.nan_to_num(tensor([complex(NAN, INF), complex(1, -INF)]), 5, 6, 7)
    assert found.tolist() == [5 + 6j, 1 + 7j]


@pytest.mark.parametrize(
    "find",
    [
        lambda s: s.topk(1),
        lambda s: s.topk(1, -1, False),
        lambda s: s.kthvalue(1, 0),
        lambda s: s.kthvalue(1, -1, True),
        lambda s: s.median(0),
        lambda s: s.sort(),
        lambda s: s.max(0),
    ],
)
def test_choosing_from_a_0d_tensor_finds_its_number_at_0(find: Callable[[Tensor], Any]) -> None:
    s = tensor(3.0, requires_grad=True)
    values, indices = find(s)
    assert values.shape == indices.shape == ()
    assert (values.item(), indices.item()) == (3, 0)
    assert indices.dtype == resilin.int64
    values.backward()
    assert s.grad is not None
    assert s.grad.item() == 1


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_kthvalue_refuses_a_number_outside_the_dimension(k: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match=rf"k={k} out of range for a dimension of size 1"):
        resilin.ones(shape).kthvalue(k, 0)


def test_flipping_a_0d_tensor_copies_it() -> None:
    s = tensor(3.0)
    for dim in (0, -1, ()):
        found = s.flip(dim)
        assert found.shape == ()
        assert found.item() == 3
        assert found.data_ptr() != s.data_ptr()
    with pytest.raises(IndexError, match="Dimension out of range"):
        s.flip(1)


def test_nonzero_of_0d_tensors_has_rows_without_columns() -> None:
    assert resilin.argwhere(tensor(3.0)).shape == (1, 0)
    assert resilin.nonzero(tensor(0.0)).shape == (0, 0)
    (places,) = resilin.nonzero(tensor(3.0), as_tuple=True)
    assert places.tolist() == [0]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (tensor([1.0]), 2, np.log([2.0])),
        (2, tensor([3.0]), 2 * np.log([3.0])),
        (tensor([2, 0]), tensor([3, 0]), [2 * np.log(3), 0]),
        (tensor([0.0, 0.0, 1.0]), tensor([NAN, 0.0, 0.0]), [NAN, 0, -INF]),
        (tensor([1, 2]), 2.5, [np.log(2.5), 2 * np.log(2.5)]),
    ],
)
def test_xlogy_takes_numbers_and_integers(a: Any, b: Any, expected: Any) -> None:
    found = resilin.xlogy(a, b)
    assert found.dtype == resilin.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_xlogy_computes_the_logarithm_in_the_common_dtype() -> None:
    found = resilin.xlogy(tensor([1.0], dtype=resilin.float64), tensor([3], dtype=resilin.uint8))
    assert found.dtype == resilin.float64
    assert found.item() == pytest.approx(np.log(3), rel=1e-15)


def test_xlogy_of_two_numbers_says_what_it_wants() -> None:
    with pytest.raises(TypeError, match=r"xlogy\(\): expected a Tensor, got int and float"):
        resilin.xlogy(1, 2.0)


def test_xlogys_gradients_are_those_of_its_definition() -> None:
    a, b = tensor([0.0, 2.0], requires_grad=True), tensor([5.0, 3.0], requires_grad=True)
    resilin.xlogy(a, b).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    np.testing.assert_allclose(a.grad.numpy(), [np.log(5), np.log(3)], rtol=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), [0, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_smooth_l1_loss_with_beta_0_is_the_l1_loss(reduction: str) -> None:
    x, y = tensor([1.0, 2.0, 3.0], requires_grad=True), tensor([3.0, 2.5, 3.0])
    found, expected = F.smooth_l1_loss(x, y, reduction=reduction, beta=0.0), F.l1_loss(x, y, reduction=reduction)
    assert found.tolist() == expected.tolist()
    (slope,) = resilin.autograd.grad(found.sum(), x)
    assert slope.tolist() == resilin.autograd.grad(expected.sum(), x)[0].tolist()


def test_smooth_l1_loss_refuses_a_negative_beta() -> None:
    with pytest.raises(RuntimeError, match=r"negative values for beta, got -1\.0"):
        F.smooth_l1_loss(resilin.zeros(1), resilin.zeros(1), beta=-1.0)


@pytest.mark.parametrize("std", [-1.0, NAN, tensor([1.0, -1.0])])
def test_normal_refuses_a_negative_standard_deviation(std: Any) -> None:
    with pytest.raises(RuntimeError, match=r"normal expects std >= 0\.0, but found std"):
        resilin.normal(0.0, std, None if isinstance(std, Tensor) else (2,))


def test_normal_with_the_deviation_0_gives_the_mean() -> None:
    assert resilin.normal(tensor([1.0, 2.0]), 0.0).tolist() == [1, 2]
    assert resilin.normal(0.0, resilin.zeros(0)).shape == (0,)


def test_functions_that_index_along_a_dimension_take_a_scalar_for_a_vector_of_one() -> None:
    s, zero, vector = resilin.tensor(3.0), resilin.tensor(0), resilin.tensor([0])
    found = {
        "gather": s.gather(0, zero),
        "index_select": s.index_select(0, vector),
        "index_fill": s.index_fill(0, vector, 1.0),
        "index_copy": s.index_copy(0, vector, resilin.tensor([2.0])),
        "scatter": s.scatter(0, zero, 2.0),
        "scatter_add": s.scatter_add(0, zero, resilin.tensor(1.0)),
        "take_along_dim": resilin.take_along_dim(s, zero, 0),
    }
    assert {name: y.item() for name, y in found.items()} == {
        "gather": 3, "index_select": 3, "index_fill": 1, "index_copy": 2, "scatter": 2, "scatter_add": 4,
        "take_along_dim": 3,
    }  # fmt: skip
    assert all(y.shape == () for y in found.values())
    assert s.gather(0, vector).shape == (1,)


def test_a_scalar_has_no_slices() -> None:
    with pytest.raises(IndexError, match="expected a tensor of one dimension or more"):
        resilin.tensor(3.0).unbind(0)


def test_what_is_found_in_a_0d_tensor_has_no_dimensions() -> None:
    s = tensor(3.0)
    assert [t.tolist() for t in s.topk(0)] == [3, 0]  # as in PyTorch
    for quantile in (resilin.quantile, resilin.nanquantile):
        assert quantile(s, 0.5, 0, True).shape == quantile(s, 0.5, keepdim=True).shape == ()
        assert quantile(s, tensor([0.5, 0.2]), 0, True).shape == (2,)
