"""Nested data as tensors: what counts as a dimension, as a number and as its dtype. Values are PyTorch's."""

import array
import decimal
import enum
from collections import UserList, deque, namedtuple

import numpy as np
import pytest

import resilin
from resilin.data import default_collate
from resilin.errors import UsageError, UsageTypeError
from resilin.nn.utils.rnn import pack_padded_sequence

T = resilin.tensor
Pair = namedtuple("Pair", "x y")


class Words:
    """A sequence by its methods alone."""

    def __init__(self, *words):
        self.words = words

    def __len__(self):
        return len(self.words)

    def __getitem__(self, place):
        return self.words[place]


class Reading:
    def __float__(self):
        return 3.5


class Count:
    def __index__(self):
        return 3


class Held:
    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, 2.0])


class Level(enum.IntEnum):
    LOW = 1


ONE_ELEMENT = [
    ([T(1.0), T(2.0)], "float32", [1.0, 2.0]),
    ([T([1.0]), T([2.0])], "float32", [1.0, 2.0]),
    ([T([[1.0]]), T([[2.0]])], "float32", [1.0, 2.0]),
    ([[T([1.0])], [T([[2.0]])]], "float32", [[1.0], [2.0]]),
    ([[T([1.0]), T(2.0)], [3, 4]], "float32", [[1.0, 2.0], [3.0, 4.0]]),
    (([T(1)], (T(2),)), "int64", [[1], [2]]),
    ([[1, 2], T([3, 4])], "int64", [[1, 2], [3, 4]]),
    ([[1, 2], T([3.0, 4.0])], "float32", [[1.0, 2.0], [3.0, 4.0]]),
    ([[[1], [2]], T([[3], [4]])], "int64", [[[1], [2]], [[3], [4]]]),
    ([np.array([1.0, 2.0]), T([3.0, 4.0])], "float64", [[1.0, 2.0], [3.0, 4.0]]),
]
MIXED = [
    ([T(1), 2.5], "float32", [1.0, 2.5]),
    ([2, T(1.5)], "float32", [2.0, 1.5]),
    ([T([1]), 2.5], "float32", [1.0, 2.5]),
    ([T(1, dtype=resilin.float64), 2.5], "float64", [1.0, 2.5]),
    ([T(1.0, dtype=resilin.float16), T(2)], "float16", [1.0, 2.0]),
    ([T(1.0, dtype=resilin.float16), 2.0], "float32", [1.0, 2.0]),
    ([T(1.0, dtype=resilin.float16), T(2.0, dtype=resilin.bfloat16)], "float32", [1.0, 2.0]),
    ([T(True), 2], "int64", [1, 2]),
    ([T(True), T(2, dtype=resilin.uint8)], "uint8", [1, 2]),
    ([T(1, dtype=resilin.int8), T(2, dtype=resilin.uint8)], "int16", [1, 2]),
    ([T(1, dtype=resilin.int8), 2], "int64", [1, 2]),
    ([T(1j), 2], "complex64", [1j, 2]),
    ([np.float64(1.5), 2.5], "float64", [1.5, 2.5]),
    ([np.float32(1.5), 2], "float32", [1.5, 2.0]),
    ([np.float32(1.5), np.float64(2)], "float64", [1.5, 2.0]),
    ([np.float16(1.5), 1], "float16", [1.5, 1.0]),
    ([np.float16(1.5), 1.5], "float32", [1.5, 1.5]),
    ([np.int8(3), 1], "int64", [3, 1]),
    ([np.int8(3), np.uint8(3)], "int16", [3, 3]),
    ([np.int64(1), 1.5], "float32", [1.0, 1.5]),
    ([np.array(1.0), 2], "float64", [1.0, 2.0]),
    ([np.array([1, 2]), [3.5, 4]], "float32", [[1.0, 2.0], [3.5, 4.0]]),
    ([np.array([1, 2], np.float32), np.array([1, 2], np.float16)], "float32", [[1.0, 2.0], [1.0, 2.0]]),
    ([True, 2.5], "float32", [1.0, 2.5]),
    ([True, 1j], "complex64", [1, 1j]),
    ([1.5, 2**63], "float32", [1.5, 2.0**63]),
    ([1.5, 2**64], "float32", [1.5, 2.0**64]),
]
OTHER_SEQUENCES = [
    (range(3), "int64", [0, 1, 2]),
    ([range(2), [1, 2]], "int64", [[0, 1], [1, 2]]),
    ([Words(1, 2), Words(3, 4)], "int64", [[1, 2], [3, 4]]),
    (Words(Words(1.0), Words(2.0)), "float32", [[1.0], [2.0]]),
    (deque([1, 2]), "int64", [1, 2]),
    ([Pair(1, 2), Pair(3, 4.0)], "float32", [[1.0, 2.0], [3.0, 4.0]]),
    (UserList([1, 2]), "int64", [1, 2]),
    (bytearray(b"ab"), "int64", [97, 98]),
    (memoryview(b"ab"), "int64", [97, 98]),
    ([array.array("d", [1.0, 2.0])], "float32", [[1.0, 2.0]]),
    ([Held(), Held()], "float64", [[1.0, 2.0], [1.0, 2.0]]),
    ([Level.LOW], "int64", [1]),
    ([[np.array([1, 2])], [[3, 4]]], "int64", [[[1, 2]], [[3, 4]]]),
]


@pytest.mark.parametrize(("data", "dtype", "expected"), [*ONE_ELEMENT, *MIXED, *OTHER_SEQUENCES])
def test_nested_data_is_read_as_in_pytorch(data, dtype, expected):
    for made in (resilin.tensor(data), resilin.as_tensor(data), resilin.asarray(data)):
        if isinstance(data, bytearray | memoryview) and made.dtype is resilin.uint8:
            continue  # asarray takes a buffer's bytes
        assert made.dtype.name == dtype
        assert made.tolist() == expected


@pytest.mark.parametrize(("data", "dtype", "expected"), [case for case in MIXED if len(np.shape(case[2])) == 1])
def test_the_order_of_numbers_does_not_change_their_dtype(data, dtype, expected):
    made = resilin.tensor(data[::-1])
    assert made.dtype.name == dtype
    assert made.tolist() == expected[::-1]


@pytest.mark.parametrize(
    ("data", "shape", "dtype"),
    [
        ([], (0,), "float32"),
        ([[]], (1, 0), "float32"),
        ([[], []], (2, 0), "float32"),
        ([[[]], [[]]], (2, 1, 0), "float32"),
        ([[], T([])], (2, 0), "float32"),
        ([[], T([], dtype=resilin.float64)], (2, 0), "float64"),
        ([np.zeros((0,)), np.zeros((0,))], (2, 0), "float64"),
        ([np.ones((2, 0))], (1, 2, 0), "float64"),
        (Words(), (0,), "float32"),
    ],
)
def test_empty_sequences_are_dimensions(data, shape, dtype):
    made = resilin.tensor(data)
    assert (made.shape, made.dtype.name) == (shape, dtype)
    assert resilin.tensor(data, dtype=resilin.int32).dtype is resilin.int32


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[1, 2], [3]], r"expected sequence of length 2 at dim 1 \(got 1\)"),
        ([[1], [2, 3]], r"expected sequence of length 1 at dim 1 \(got 2\)"),
        ([[[1, 2], [3]]], r"expected sequence of length 2 at dim 2 \(got 1\)"),
        ([np.array([1, 2]), np.array([1])], r"expected sequence of length 2 at dim 1 \(got 1\)"),
        ([[], [1]], r"expected sequence of length 0 at dim 1 \(got 1\)"),  # PyTorch drops the 1
        ([T([1.0, 2.0]), T([3.0, 4.0])], "only one element tensors can be converted to Python scalars"),
        ([T([]), T([])], "only one element tensors can be converted to Python scalars"),
        ([-(2**63) - 1], "int64 holds"),
        ([2**63, True], "int64 holds"),
        (["a"], "text"),
    ],
)
def test_rows_that_do_not_fit_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        resilin.tensor(data)


def test_a_list_without_end_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(UsageError, match="too many dimensions"):
        resilin.tensor(endless)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [1, None],
        [None, 1],
        "1",
        b"ab",
        [b"ab"],
        {1: 2},
        [{1: 2}],
        {1, 2},
        [1, [2]],
        [[1], 2],
        (x for x in [1]),
        iter([1]),
        [Count()],
        [Reading(), 1.0],
        [decimal.Decimal("1.5")],
    ],
)
def test_what_is_no_number_is_refused(data):
    with pytest.raises(UsageTypeError) as caught:
        resilin.tensor(data)
    assert isinstance(caught.value, RuntimeError)  # which PyTorch raises for some of them


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        ([Reading()], "float32", [3.5]),
        (Reading(), "float64", 3.5),
        ([Count()], "int64", [3]),
        ([Count()], "float32", [3.0]),
        ([decimal.Decimal("1.5")], "float64", [1.5]),
        ([1.5, -1.5], "int32", [1, -1]),
        ([2**53 + 1, 1.5], "int64", [2**53 + 1, 1]),
        ([-1, -255], "uint8", [255, 1]),
        ([0.5, 0.0, float("nan"), 2], "bool", [True, False, True, True]),
        ([1j, 0j, 2**70], "bool", [True, False, True]),
        ([1e300, 70000], "float16", [float("inf")] * 2),
        ([1e39], "float32", [float("inf")]),
        ([2**64 - 1], "uint64", [2**64 - 1]),
        ([2**70, 1], "bfloat16", [2.0**70, 1.0]),
        ([T(1 + 0j), np.complex64(2)], "float32", [1.0, 2.0]),
        ([T(-1)], "uint8", [255]),
        ([np.float64(1.5), np.int32(3)], "int16", [1, 3]),
        ([np.array([1.5, 2])], "int32", [[1, 2]]),
        (np.array([300, -1]), "uint8", [44, 255]),  # an array's elements are converted as a tensor's
    ],
)
def test_numbers_are_converted_to_the_dtype_asked_for(data, dtype, expected):
    assert resilin.tensor(data, dtype=resilin.core.dtype.by_name(dtype)).tolist() == expected


@pytest.mark.parametrize(
    ("data", "dtype", "error"),
    [
        ([300], "uint8", RuntimeError),
        ([-256], "uint8", RuntimeError),
        ([128], "int8", RuntimeError),
        ([2**31], "int32", RuntimeError),
        ([2**63], "int32", RuntimeError),
        ([300.5], "uint8", RuntimeError),
        ([-1.5], "uint8", RuntimeError),
        ([1e10], "int32", RuntimeError),
        ([1e20], "int64", RuntimeError),
        ([float("nan")], "int32", RuntimeError),
        (float("inf"), "int64", RuntimeError),
        ([float("-inf")], "uint8", RuntimeError),
        ([T(300)], "uint8", RuntimeError),
        (np.int64(300), "uint8", RuntimeError),
        ([np.int64(300)], "uint8", RuntimeError),
        ([np.float64(300)], "uint8", RuntimeError),
        ([np.array([300])], "uint8", RuntimeError),
        ([np.array([np.nan])], "int32", RuntimeError),
        ([T(1j)], "float32", RuntimeError),
        ([1j], "float32", TypeError),
        ([1 + 0j], "int32", TypeError),
        ([T(1.0)], "int64", TypeError),
        ([T(2.0), T(0.0)], "bool", TypeError),
        ([T([1, 2])], "float32", ValueError),
        ([10**400], "float64", (OverflowError, RuntimeError)),
        ([None], "float32", UsageTypeError),
        (["1"], "float32", UsageTypeError),
        ([Reading()], "int64", UsageTypeError),
    ],
)
def test_numbers_that_the_dtype_asked_for_cannot_hold_are_refused(data, dtype, error):
    kind = resilin.core.dtype.by_name(dtype)
    for make in (resilin.tensor, resilin.as_tensor, resilin.zeros(1).new_tensor):
        with pytest.raises(error):
            make(data, dtype=kind)
    with pytest.raises(error):
        resilin.zeros(1, dtype=kind).new_tensor(data)


def test_gradients_end_at_the_numbers_of_a_list():
    x = T([1.5], requires_grad=True)
    made = T([x, 2])
    assert (made.tolist(), made.requires_grad) == ([1.5, 2.0], False)


def test_tensor_takes_data_as_tensor_does_in_the_default_dtype():
    assert resilin.Tensor([T([1.0]), T([2])]).tolist() == [1.0, 2.0]
    assert resilin.Tensor([True, 2]).dtype is resilin.float32
    assert resilin.Tensor(range(3)).tolist() == [0.0, 1.0, 2.0]
    assert resilin.Tensor(resilin.Size([2, 3])).shape == (2, 3)
    assert resilin.Tensor([1e300]).tolist() == [float("inf")]
    for wrong in (None, 2.5, "a", [None], [[1, 2], [3]], [1j]):
        with pytest.raises((TypeError, UsageError)):
            resilin.Tensor(wrong)


def test_fill_values_are_numbers():
    assert resilin.full((2,), T(3)).tolist() == [3, 3]
    assert resilin.full((1,), np.float64(2.5)).dtype is resilin.float32
    assert resilin.full((1,), T(3, dtype=resilin.int8)).dtype is resilin.int64
    like = resilin.ones(2)
    for wrong in (T([3.0]), T([3.0, 4.0]), T(3.0, requires_grad=True), None, [1], "a", np.array(2.5)):
        for fill in (
            lambda value: resilin.full((2,), value),
            lambda value: resilin.full_like(like, value),
            lambda value: like.new_full((2,), value),
            lambda value: resilin.scalar_tensor(value),
        ):
            with pytest.raises(UsageTypeError, match="expected a number"):
                fill(wrong)
    for wrong in (None, [1], "a", np.array(2.5)):
        for fill in (
            lambda value: like.fill_(value),
            lambda value: like.masked_fill(T([True, False]), value),
            lambda value: like.masked_fill_(T([True, False]), value),
            lambda value: like.index_fill(0, T([0]), value),
        ):
            with pytest.raises(UsageTypeError, match="expected a number"):
                fill(wrong)
    assert like.tolist() == [1.0, 1.0]
    for make in (resilin.arange, lambda end: resilin.linspace(0, end, 3)):
        with pytest.raises(UsageTypeError, match="without dimensions"):
            make(T([3.0]))


def test_lists_of_one_element_tensors_are_lists_of_numbers_everywhere():
    x = T([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    assert x[([T([1]), T([2])],)].tolist() == [[3, 4, 5], [6, 7, 8]]
    assert x[([2, T([1])],)].tolist() == [[6, 7, 8], [3, 4, 5]]
    assert x[([[]],)].shape == (1, 0, 3)
    packed = pack_padded_sequence(resilin.ones(2, 2, 1), [T([2]), T([1])], batch_first=True)
    assert packed.batch_sizes.tolist() == [2, 1]
    assert resilin.data.WeightedRandomSampler([T([1.0]), 2], 1).weights.tolist() == [1.0, 2.0]


def test_batches_of_numbers_may_hold_tensors():
    assert default_collate([2, T(1)]).tolist() == [2, 1]
    assert default_collate([1.5, T([1])]).tolist() == [1.5, 1.0]
    assert default_collate([1, 2.5]).dtype is resilin.float32
    with pytest.raises(ValueError, match="int64 holds"):
        default_collate([2**63, 1])
    with pytest.raises(TypeError, match="found NoneType"):
        default_collate([1, None])
