"""Small things that programs written for PyTorch count on: how numbers are written, what is written in
place, what indexes."""

import operator

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
