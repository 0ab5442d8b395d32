"""Small things that programs written for PyTorch count on: how numbers are written, what is written in
place, what indexes."""

import operator
import pickle

import numpy as np
import pytest

import resilin


def test_a_single_number_is_formatted_as_the_number():
    loss = resilin.tensor(3.14, requires_grad=True)
    assert f"{loss} {resilin.tensor(7)} {resilin.tensor(True)}" == "3.140000104904175 7 True"
    assert f"{loss:.2f} {resilin.tensor(2.5, dtype=resilin.bfloat16)}" == "3.14 2.5"
    assert f"{resilin.ones(2)}" == "tensor([1., 1.])"


@pytest.mark.parametrize("x", [resilin.ones(2), resilin.ones(1)])
def test_a_format_is_for_a_single_number(x):
    with pytest.raises(TypeError, match=r"unsupported format string passed to Tensor\.__format__"):
        f"{x:.3f}"


AUGMENTED = ["iadd", "isub", "imul", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift"]


@pytest.mark.parametrize("name", AUGMENTED)
def test_an_augmented_assignment_writes_where_the_tensor_lies(name):
    x = resilin.tensor([4, 7])
    y = x
    y = getattr(operator, name)(y, 2)
    assert y is x
    assert x.tolist() == [getattr(operator, name)(n, 2) for n in (4, 7)]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([[0], [1]], [1]),
        ([[0, 1], [1, 2]], [1, 6]),
        ([resilin.tensor(0), resilin.tensor(1)], 1),
        ([resilin.tensor([0, 1]), [1, 2]], [1, 6]),
        ([[1, 0], 1], [5, 1]),
        ([slice(1)], [[0, 1, 2, 3]]),
        ([0, None], [[0, 1, 2, 3]]),
        ([0, ...], [0, 1, 2, 3]),
        ([[True, False, True]], [[0, 1, 2, 3], [8, 9, 10, 11]]),
    ],
)
def test_a_list_of_indices_is_read_as_a_tuple(index, expected):
    x = resilin.arange(12).reshape(3, 4)
    with pytest.warns(UserWarning, match="read as a tuple"):
        assert x[index].tolist() == expected
    y = x.clone()
    with pytest.warns(UserWarning, match="read as a tuple"):
        y[index] = -1
    assert (y == -1).sum() == x[tuple(index)].numel()
    assert y[tuple(index)].tolist() == resilin.full_like(x[tuple(index)], -1).tolist()


def test_a_list_of_numbers_and_a_range_are_indices():
    x = resilin.arange(12).reshape(3, 4)
    assert x[[0, 2]].tolist() == x[range(0, 3, 2)].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert x[[True, False, True]].tolist() == x[[0, 2]].tolist()
    assert x[range(2), [1, 2]].tolist() == [1, 6]
    assert x[[[i % 3] for i in range(33)]].shape == (33, 1, 4)
    x[range(2)] = 0
    assert x.sum() == 8 + 9 + 10 + 11


def test_bytes_are_a_mask():
    x = resilin.arange(3)
    with pytest.warns(UserWarning, match="mask"):
        assert x[resilin.tensor([1, 0, 1], dtype=resilin.uint8)].tolist() == [0, 2]
    with pytest.warns(UserWarning, match="mask"):
        x[resilin.tensor([0, 1, 0], dtype=resilin.uint8)] = 7
    assert x.tolist() == [0, 7, 2]


def test_pythons_types_are_dtypes_of_their_precision():
    kinds = [resilin.zeros(1, dtype=kind).dtype for kind in (bool, int, float, complex)]
    assert kinds == [resilin.bool, resilin.int64, resilin.float64, resilin.complex128]
    assert resilin.ones(1).to(float).dtype is resilin.float64
    assert resilin.where(resilin.tensor([True]), 1.0, 0.0).dtype is resilin.float32


@pytest.mark.parametrize("kind", [resilin.float16, resilin.float32])
def test_a_single_number_does_not_widen_what_it_limits_fills_or_weighs(kind):
    x, one = resilin.ones(2, dtype=kind), resilin.tensor(1.0, dtype=resilin.float64)
    made = [
        x.masked_fill(resilin.tensor([True, False]), one),
        x.clamp(one),
        x.clamp(max=one),
        x.lerp(x, one),
        x.add(x, alpha=one),
        x.addcmul(x, x, value=one),
        x.addcdiv(x, x, value=one),
    ]
    assert [y.dtype for y in made] == [kind] * len(made)


def test_a_single_number_of_a_higher_kind_decides_the_dtype_of_limits_but_not_of_a_filled_tensor():
    x = resilin.tensor([1, 4])
    assert x.clamp(max=resilin.tensor(2.5)).tolist() == [1, 2.5]
    assert x.masked_fill(resilin.tensor([True, False]), resilin.tensor(7.5)).tolist() == [7, 4]
    assert x.masked_fill(resilin.tensor([True, False]), resilin.tensor(7.5)).dtype is resilin.int64


def test_bytes_are_tested_to_bytes():
    x = resilin.tensor([[2, 0]], dtype=resilin.uint8)
    assert x.any().dtype is x.all(1).dtype is resilin.uint8
    assert (x.any().item(), x.all().item()) == (1, 0)
    assert resilin.array_api.any(x).dtype is resilin.bool


def test_empty_tensors_give_their_dtype_to_what_they_are_joined_with():
    assert resilin.cat([resilin.tensor([1]), resilin.zeros(0)]).dtype is resilin.float32
    assert resilin.cat([resilin.zeros(0, dtype=resilin.float64), resilin.ones(2, 2)]).dtype is resilin.float64


def test_counts_weighed_in_float32_are_float32():
    x = resilin.tensor([0, 1, 1])
    assert resilin.bincount(x, resilin.tensor([0.5, 1, 2])).tolist() == [0.5, 3]
    kinds = [resilin.bincount(x, resilin.ones(3, dtype=k)).dtype for k in (resilin.float32, resilin.float16)]
    assert kinds == [resilin.float32, resilin.float64]


def test_what_is_made_of_a_shape_is_a_shape():
    size = resilin.ones(2, 3, 4).shape
    made = [size[1:], size + (1,), (1,) + size, size + size, size * 2, 2 * size]  # noqa: RUF005
    assert [type(m) for m in made] == [resilin.Size] * 6
    assert [tuple(m) for m in made[:4]] == [(3, 4), (2, 3, 4, 1), (1, 2, 3, 4), (2, 3, 4, 2, 3, 4)]
    assert size[1:].numel() == 12
    assert (size[-1], size == (2, 3, 4)) == (4, True)


def test_the_parts_of_complex_numbers_are_assigned():
    x = resilin.tensor([1 + 2j, 3 + 4j])
    x.real = 5
    x.imag = resilin.tensor([7.0, 8.0])
    assert x.tolist() == [5 + 7j, 5 + 8j]
    y = resilin.ones(2)
    y.real = 3
    assert y.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="imag"):
        y.imag = 3


def test_dimensions_may_be_given_one_by_one():
    assert resilin.zeros(1, 1, 3).squeeze(0, 1).shape == (3,)
    assert resilin.zeros(1, 1, 3).squeeze_(0, 1).shape == (3,)
    assert resilin.ones(4).broadcast_to(3, 4).shape == resilin.broadcast_to(resilin.ones(4), (3, 4)).shape == (3, 4)


def test_a_number_is_copied_everywhere():
    assert resilin.zeros(2).copy_(5).tolist() == [5, 5]


def test_slices_are_filled_at_places_counted_from_the_end():
    x = resilin.zeros(3, requires_grad=True)
    y = x.index_fill(0, resilin.tensor([-1]), 3.0)
    assert y.tolist() == [0, 0, 3]
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 0]
    with pytest.raises(IndexError, match="-4 is out of bounds"):
        x.index_fill(0, resilin.tensor([-4]), 3.0)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "amax", "amin", "logsumexp", "nansum", "nanmean", "all", "any", "count_nonzero"]
)
def test_a_single_number_is_reduced_over_its_only_dimension(name):
    x = resilin.tensor(2.5)
    assert getattr(x, name)([0]).shape == getattr(x, name)((-1,)).shape == ()
    assert getattr(x, name)((0,)).item() == getattr(x, name)(0).item()
    with pytest.raises(IndexError, match="out of range"):
        getattr(x, name)((1,))


def test_the_spread_and_the_norm_of_a_single_number_over_its_only_dimension():
    x = resilin.tensor(2.5)
    assert x.std([0], correction=0).item() == x.var((0,), correction=0).item() == 0
    assert resilin.linalg.norm(x, dim=0).item() == resilin.linalg.vector_norm(x, dim=(0,)).item() == 2.5


@pytest.mark.parametrize("ord", [2, 1, float("inf"), "nuc", "fro"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3)])
def test_the_norm_of_a_matrix_without_elements_is_zero(shape, ord):
    found = resilin.linalg.matrix_norm(resilin.zeros(shape), ord)
    assert found.tolist() == resilin.zeros(shape[:-2]).tolist()


def test_a_number_picks_from_a_vector():
    assert resilin.arange(5).gather(0, resilin.tensor(1)).tolist() == 1


def test_bools_go_along_with_numbers_but_not_alone():
    yes = resilin.tensor([True])
    assert resilin.gcd(resilin.tensor([4]), yes).tolist() == [1]
    assert resilin.lcm(resilin.tensor([4]), yes).tolist() == [4]
    assert resilin.nextafter(resilin.tensor([1.0]), yes).tolist() == [1]
    with pytest.raises(NotImplementedError, match="bool"):
        resilin.gcd(yes, yes)


def test_the_type_of_a_result_does_not_ask_for_shapes():
    assert resilin.result_type(resilin.ones(2), resilin.ones(3, dtype=resilin.float64)) is resilin.float64
    assert resilin.result_type(1, 2.5) is resilin.float32
    assert resilin.result_type(resilin.ones(2, dtype=resilin.float16), 2.5) is resilin.float16


@pytest.mark.parametrize("kind", [resilin.float16, resilin.bfloat16])
def test_narrow_floats_are_counted_into_bins(kind):
    found = resilin.histc(resilin.tensor([1.0, 2, 2, 3], dtype=kind), 3)
    assert found.dtype is kind
    assert found.tolist() == [1, 2, 1]


def test_a_running_sum_of_nothing_still_has_its_dimensions():
    with pytest.raises(IndexError, match="out of range"):
        resilin.zeros(0).logcumsumexp(5)


@pytest.mark.parametrize("other", [1j, resilin.tensor([1j])])
@pytest.mark.parametrize("compare", [operator.lt, operator.ge])
def test_complex_numbers_have_no_order(compare, other):
    with pytest.raises(RuntimeError, match="no order"):
        compare(resilin.ones(1), other)


def test_a_computed_tensor_is_pickled_without_its_history():
    x = resilin.ones(2, requires_grad=True) * 2
    y = pickle.loads(pickle.dumps(x))
    assert y.tolist() == [2, 2]
    assert (y.requires_grad, y.is_leaf) == (True, True)


def test_bytes_hold_minus_one_as_their_largest_number_and_nothing_beyond():
    assert resilin.tensor([-1, 5], dtype=resilin.uint8).tolist() == [255, 5]
    x = resilin.full((2,), -1, dtype=resilin.uint8)
    x[0] = -2
    assert x.tolist() == [254, 255]
    for write in (lambda v: resilin.tensor(v, dtype=resilin.uint8), x.fill_, lambda v: x.__setitem__(0, v)):
        with pytest.raises(RuntimeError, match="without overflow"):
            write(300)


def test_a_number_that_is_too_large_for_the_dtype_is_not_written():
    x = resilin.zeros(2)
    for write in (x.fill_, lambda v: x.__setitem__(0, v), lambda v: resilin.full((2,), v)):
        with pytest.raises(RuntimeError, match="without overflow"):
            write(1e40)
    assert x.fill_(float("inf")).tolist() == [float("inf")] * 2


def test_data_that_is_too_large_becomes_infinite_without_a_warning():
    inf = float("inf")
    assert resilin.tensor([1e40, 1]).tolist() == [inf, 1]
    assert resilin.logspace(0, 400, 3).tolist() == [1, inf, inf]
    x = resilin.zeros(2).copy_(resilin.tensor([1e40, 1], dtype=resilin.float64))
    x[1] = resilin.tensor(1e40, dtype=resilin.float64)
    assert x.tolist() == [inf, inf]
    assert resilin.tensor(2**70, dtype=resilin.bfloat16).item() == 2.0**70


def test_what_numpys_functions_make_of_tensors_is_a_tensor():
    x = resilin.tensor([0.0, 1.0])
    for found, expected in ((np.add(x, 1), [1, 2]), (np.maximum(np.ones(2), x), [1, 1]), (np.isnan(x), [False, False])):
        assert type(found) is resilin.Tensor
        assert found.tolist() == expected
    assert type(np.asarray(x)) is np.ndarray


def test_the_order_of_a_norm_of_vectors_is_a_number():
    with pytest.raises(TypeError, match="ord must be a number, got 'fro'"):
        resilin.linalg.vector_norm(resilin.ones(2), "fro")


def test_limits_of_dtypes_are_written_as_by_pytorch():
    assert repr(resilin.finfo(resilin.bfloat16)) == (
        "finfo(resolution=0.01, min=-3.38953e+38, max=3.38953e+38, eps=0.0078125, smallest_normal=1.17549e-38, "
        "tiny=1.17549e-38, dtype=bfloat16)"
    )


def test_zeros_are_not_written_scientifically():
    resilin.set_printoptions(sci_mode=True)
    try:
        assert repr(resilin.zeros(2)) == "tensor([0., 0.])"
    finally:
        resilin.set_printoptions(sci_mode=None)


def test_numbers_stand_for_the_letters_of_a_sum():
    x, y = resilin.arange(6.0).reshape(2, 3), resilin.ones(3, 2)
    assert resilin.einsum(x, [0, 1], [1, 0]).tolist() == x.T.tolist()
    assert resilin.einsum(x, [0, 7], y, [7, 2]).tolist() == (x @ y).tolist()
    assert resilin.einsum(x, [..., 1], [1, ...]).tolist() == x.T.tolist()
    with pytest.raises(ValueError, match="from 0 to 51"):
        resilin.einsum(x, [0, 60], [0])


@pytest.mark.parametrize(
    ("dim", "keepdim", "shape"), [(0, False, (0, 3)), (1, True, (0, 2, 1)), (None, True, (0, 1, 1))]
)
def test_no_quantiles_are_asked_for(dim, keepdim, shape):
    x = resilin.arange(6.0).reshape(2, 3)
    assert x.quantile(resilin.zeros(0), dim, keepdim).shape == shape
