"""The array API standard's namespace where it differs from `resilin`'s own; the standard's suite proves the rest."""

import numpy as np
import pytest

import resilin
from resilin import array_api as xp


def test_a_tensor_names_the_namespace_and_refuses_versions_that_are_not_there():
    x = xp.ones(3)
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ValueError, match=r"2030\.01"):
        x.__array_namespace__(api_version="2030.01")


def test_the_namespace_says_what_it_can_do():
    info = xp.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] is True
    resilin.empty(1, device="meta")  # on which nothing can be computed
    assert info.default_device() in info.devices()
    assert "meta" not in {each.type for each in info.devices()}
    assert info.default_dtypes()["real floating"] is xp.float32
    assert info.dtypes(kind=("bool", "complex floating")).keys() == {"bool", "complex64", "complex128"}
    with pytest.raises(ValueError, match="no kind of dtypes is called 'floating'"):
        info.dtypes(kind="floating")
    with pytest.raises(RuntimeError, match="nowhere"):
        info.default_dtypes(device="nowhere")


def test_sums_and_products_of_unsigned_integers_stay_unsigned():
    x = xp.asarray([200, 100], dtype=xp.uint8)
    assert xp.sum(x).dtype is xp.uint64
    assert int(xp.sum(x)) == 300
    assert xp.prod(x).dtype is xp.uint64
    assert xp.sum(x, dtype=xp.uint8).dtype is xp.uint8
    assert int(xp.sum(x, dtype=xp.uint8)) == 44


def test_an_empty_axis_reduces_over_nothing():
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    for reduce in (xp.sum, xp.prod, xp.mean, xp.max, xp.min):
        assert reduce(x, axis=()).tolist() == x.tolist()
    assert xp.std(x, axis=()).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert float(xp.sum(x)) == 10.0


def test_variances_are_biased_by_default():
    x = xp.asarray([1.0, 3.0])
    assert float(xp.var(x)) == 1.0
    assert float(xp.var(x, correction=1)) == 2.0


def test_a_python_number_never_widens_a_dtype_within_its_kind():
    assert xp.result_type(xp.float32, 1.0) is xp.float32
    assert xp.result_type(xp.int8, 3) is xp.int8
    assert xp.result_type(xp.float64, 1j) is xp.complex128
    assert xp.result_type(xp.int8, xp.asarray([1.0])) is xp.float32
    with pytest.raises(ValueError, match="at least one tensor or dtype"):
        xp.result_type(1, 2.0)


def test_a_dtype_casts_where_promotion_leads():
    assert xp.can_cast(xp.int8, xp.int16)
    assert not xp.can_cast(xp.int64, xp.int8)
    assert xp.can_cast(xp.uint8, xp.int16)
    assert not xp.can_cast(xp.uint64, xp.int64)


def test_squeezing_a_longer_dimension_is_an_error_here():
    with pytest.raises(ValueError, match="dimension 0 of shape"):
        xp.squeeze(xp.ones((2, 1)), 0)


def test_a_reshape_without_a_copy_shares_memory_or_raises():
    x = xp.zeros((2, 3))
    flat = xp.reshape(x, (6,), copy=False)
    flat[0] = 7.0
    assert float(x[0, 0]) == 7.0
    with pytest.raises(ValueError, match="copy=False"):
        xp.reshape(x.T, (6,), copy=False)
    assert xp.reshape(x, (6,), copy=True).data_ptr() != x.data_ptr()


def test_asarray_shares_memory_unless_it_must_or_shall_not():
    array = np.zeros(3, np.float32)
    shared = xp.asarray(array)
    shared[0] = 5.0
    assert array[0] == 5.0
    copied = xp.asarray(array, copy=True)
    copied[0] = 6.0
    assert array[0] == 5.0
    with pytest.raises(ValueError, match="without a copy"):
        xp.asarray([1, 2], copy=False)
    assert xp.asarray(memoryview(b"\x01\x02")).tolist() == [1, 2]


def test_a_systems_right_side_is_a_vector_only_when_it_has_one_dimension():
    a = xp.stack([xp.eye(2), 2 * xp.eye(2)])
    b = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert xp.linalg.solve(a, b).tolist() == [[[1.0, 2.0], [3.0, 4.0]], [[0.5, 1.0], [1.5, 2.0]]]
    assert xp.linalg.solve(a, b[0]).tolist() == [[1.0, 2.0], [0.5, 1.0]]


def test_vecdot_conjugates_and_does_not_stretch_its_axis():
    x = xp.asarray([1j, 2.0], dtype=xp.complex64)
    assert complex(xp.vecdot(x, x)) == 5.0
    with pytest.raises(ValueError, match="equal lengths"):
        xp.vecdot(xp.ones(3), xp.ones(1))


def test_distinct_elements_come_with_their_places():
    found = xp.unique_all(xp.asarray([[3, 1], [3, 2]]))
    assert found.values.tolist() == [1, 2, 3]
    assert found.indices.tolist() == [1, 3, 0]
    assert found.inverse_indices.tolist() == [[2, 0], [2, 1]]
    assert found.counts.tolist() == [1, 1, 2]


def test_what_is_not_a_number_has_no_sign_and_complex_numbers_are_rounded_by_parts():
    signs = xp.sign(xp.asarray([-2.0, float("nan"), 0.0]))
    assert signs[0].item() == -1.0
    assert signs[1].item() != signs[1].item()
    assert xp.round(xp.asarray([1.5 - 2.5j], dtype=xp.complex64)).tolist() == [2 - 2j]


def test_scans_can_start_with_their_neutral_element():
    x = xp.asarray([[1, 2], [3, 4]])
    assert xp.cumulative_sum(x, axis=1, include_initial=True).tolist() == [[0, 1, 3], [0, 3, 7]]
    assert xp.cumulative_prod(x, axis=0, include_initial=True).tolist() == [[1, 1], [1, 2], [3, 8]]
    with pytest.raises(ValueError, match="give axis"):
        xp.cumulative_sum(x)


def test_differences_can_be_taken_with_neighbours_on_both_sides():
    x = xp.asarray([1, 4, 9])
    assert xp.diff(x, prepend=xp.asarray([0]), append=xp.asarray([9])).tolist() == [1, 3, 5, 0]


def test_functions_of_the_namespace_are_differentiable():
    x = xp.asarray([1.0, 2.0], copy=True).requires_grad_()
    xp.linalg.vector_norm(xp.concat([x, 2 * x])).backward()
    assert resilin.allclose(x.grad, x.detach())  # sqrt(5) * |x|, and |x| is sqrt(5)


def test_transforms_take_axes():
    x = xp.reshape(xp.arange(6.0), (2, 3))
    assert xp.fft.fftn(x, axes=(0,)).shape == (2, 3)
    assert float(xp.fft.irfft(xp.fft.rfft(x, axis=1), n=3, axis=1)[1, 2]) == pytest.approx(5.0)
