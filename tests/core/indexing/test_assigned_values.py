"""Assignment by index: which shapes, dtypes and kinds of values are taken. Values are PyTorch's."""

import numpy as np
import pytest

import resilin
from resilin.func import vmap

T = resilin.tensor
MASK = T([True, False, True])

LEADING_ONES = [
    ((3,), 0, (1,), [1.0, 0.0, 0.0]),
    ((3,), -1, (1, 1, 1), [0.0, 0.0, 1.0]),
    ((), (), (1,), 1.0),
    ((), ..., (1, 1), 1.0),
    ((3,), T(1), (1,), [0.0, 1.0, 0.0]),
    ((2, 2), (0, 1), (1, 1), [[0.0, 1.0], [0.0, 0.0]]),
    ((2, 2), (T(0), 1), (1,), [[0.0, 1.0], [0.0, 0.0]]),
    ((3,), slice(0, 2), (1, 1, 2), [1.0, 2.0, 0.0]),
    ((3,), None, (1, 1, 1, 3), [1.0, 2.0, 3.0]),
    ((3,), MASK, (1, 2), [1.0, 0.0, 2.0]),
    ((3,), MASK, (1, 1), [1.0, 0.0, 1.0]),
    ((3,), MASK, (1, 1, 2), [1.0, 0.0, 2.0]),
    ((3,), [True, False, True], (1, 2), [1.0, 0.0, 2.0]),
    ((3,), [0, 2], (1, 2), [1.0, 0.0, 2.0]),
    ((3,), T([0, 2]), (1, 1, 1), [1.0, 0.0, 1.0]),
    ((2, 3), T([[True, False, True], [False, True, False]]), (1, 3), [[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]),
    ((2, 3), T([False, True]), (1, 1, 3), [[0.0] * 3, [1.0, 2.0, 3.0]]),
    ((2, 3), (slice(None), MASK), (1, 1, 2), [[1.0, 0.0, 2.0], [1.0, 0.0, 2.0]]),
    ((2, 3), (..., T([0, 2])), (1, 2, 2), [[1.0, 0.0, 2.0], [3.0, 0.0, 4.0]]),
    ((2, 3), (T([[0], [1]]), T([0, 2])), (1, 2, 1), [[1.0, 0.0, 1.0], [2.0, 0.0, 2.0]]),
    ((3,), T([False, False, False]), (1, 0), [0.0] * 3),
    ((3,), [], (1, 0), [0.0] * 3),
    ((2,), True, (1, 1, 2), [1.0, 2.0]),
    ((2,), T(True), (1, 1, 1, 2), [1.0, 2.0]),
    ((2,), False, (3,), [0.0, 0.0]),  # nothing is chosen
]


def counted(shape):
    return resilin.arange(1.0, 1 + int(np.prod(shape))).reshape(shape)


@pytest.mark.parametrize(("shape", "index", "of", "expected"), LEADING_ONES)
def test_leading_ones_of_a_value_are_left_out(shape, index, of, expected):
    x = resilin.zeros(shape)
    x[index] = counted(of)
    assert x.tolist() == expected
    x = resilin.zeros(shape)
    x[index] = counted(of).numpy()
    assert x.tolist() == expected


@pytest.mark.parametrize(("shape", "index", "of", "expected"), LEADING_ONES)
def test_gradients_have_the_shape_of_the_value(shape, index, of, expected):
    value = counted(of).requires_grad_()
    x = resilin.zeros(shape) * 1
    x[index] = value
    if not x.requires_grad:
        assert index is False
        return
    weights = counted(shape) + 1
    (x * weights).sum().backward()
    spread = resilin.zeros(shape)  # what each element of the value weighs, by one write for each
    found = []
    for place in range(value.numel()):
        one = resilin.zeros(value.numel())
        one[place] = 1
        spread.zero_()
        spread[index] = one.reshape(of)
        found.append((spread * weights).sum().item())
    assert value.grad.shape == of
    assert value.grad.reshape(-1).tolist() == found


def test_a_row_written_at_a_mask_has_its_gradient_there():
    value = T([[5.0, 6.0]], requires_grad=True)
    x = resilin.ones(3, requires_grad=True)
    y = x * 2
    y[MASK] = value
    (y * T([1.0, 10.0, 100.0])).sum().backward()
    assert y.tolist() == [5.0, 2.0, 6.0]
    assert value.grad.tolist() == [[1.0, 100.0]]
    assert x.grad.tolist() == [0.0, 20.0, 0.0]


@pytest.mark.parametrize(
    ("shape", "index", "of"),
    [
        ((3,), 0, (2,)),
        ((3,), slice(None), (2, 3)),
        ((3,), MASK, (3,)),
        ((3,), MASK, (2, 1)),
        ((3,), T([0, 2]), (2, 2)),
        ((2, 3), 0, (2, 1, 3)),
        ((3,), T([False, False, False]), (2, 0)),
        ((3,), T([False, False, False]), (3,)),
        ((0,), ..., (2, 0)),
        ((2,), True, (3,)),
    ],
)
def test_values_that_do_not_fit_are_refused(shape, index, of):
    x = resilin.zeros(shape)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[index] = counted(of)
    assert not x.any()


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float32", 2, 2.0),
        ("int32", 2.7, 2),
        ("int32", T(2.7), 2),
        ("int32", T([-2.7]), -2),
        ("uint8", T([300]), 44),
        ("uint8", -1, 255),
        ("bool", 0.5, True),
        ("bool", 1j, True),
        ("bool", T([2]), True),
        ("float16", T([1e300], dtype=resilin.float64), float("inf")),
        ("bfloat16", [[2]], 2.0),
        ("float64", [0.1], 0.1),
        ("float64", [T([3]), 2][:1], 3.0),
        ("complex64", [1j], 1j),
        ("float32", np.float64(2.5), 2.5),
        ("float32", np.ones((1, 1)), 1.0),
    ],
)
@pytest.mark.parametrize("index", [0, [0], T([True, False])])
def test_values_become_what_elements_hold(dtype, value, expected, index):
    x = resilin.zeros(2, dtype=resilin.core.dtype.by_name(dtype))
    x[index] = value
    assert x.tolist() == [expected, x[1].item()]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, TypeError),
        ("1", TypeError),
        ({}, TypeError),
        ([None], TypeError),
        ([1j], TypeError),
        (1j, RuntimeError),
        (300, RuntimeError),
        ([300], RuntimeError),
        (np.int64(300), RuntimeError),
        (float("nan"), RuntimeError),
        ([[1], [2, 3]], ValueError),
    ],
)
@pytest.mark.parametrize("index", [0, [0], T([True, False]), False])
def test_what_elements_cannot_hold_is_refused(value, error, index):
    x = resilin.zeros(2, dtype=resilin.uint8)
    with pytest.raises(error):
        x[index] = value
    assert x.tolist() == [0, 0]


def test_copy_is_stricter_than_assignment():
    for shape, of in (((3,), (1, 3)), ((2, 3), (1, 1, 3)), ((), (1,)), ((3,), (2, 3)), ((0,), (1, 0))):
        for value in (resilin.ones(of), resilin.ones(of, requires_grad=True)):
            with pytest.raises(RuntimeError, match="cannot be broadcast"):
                resilin.zeros(shape).copy_(value)
    assert resilin.zeros(2, 3).copy_(T([1.0])).tolist() == [[1.0] * 3] * 2
    z = resilin.zeros(2, dtype=resilin.complex64)
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        z.real = resilin.ones(1, 2)


def test_index_put_is_stricter_than_assignment():
    two = T([0, 2])
    for indices, of in (((two,), (1, 2)), ((two,), (1, 1)), ((T(0),), (1,)), ((MASK,), (1, 2))):
        for accumulate in (False, True):
            with pytest.raises(RuntimeError, match="shape mismatch"):
                resilin.zeros(3).index_put_(indices, resilin.ones(of), accumulate)
        with pytest.raises(RuntimeError, match="shape mismatch"):
            resilin.index_put(resilin.zeros(3), indices, resilin.ones(of))
    assert resilin.zeros(3).index_put_((two,), T([5.0])).tolist() == [5.0, 0.0, 5.0]
    assert resilin.zeros(2, 3).index_put_((T([1]),), T([[1.0, 2.0, 3.0]])).tolist() == [[0.0] * 3, [1.0, 2.0, 3.0]]
    grid = (T([[0], [1]]), T([0, 2]))
    assert resilin.zeros(2, 3).index_put_(grid, counted((2, 2))).tolist() == [[1.0, 0.0, 2.0], [3.0, 0.0, 4.0]]


def test_values_lose_leading_ones_inside_vmap():
    def written(row, index, value):
        x = row.clone()
        x[index] = value(row)
        return x

    rows = resilin.ones(2, 3)
    assert vmap(lambda v: written(v, 0, lambda v: v[None, :1] * 5))(rows).tolist() == [[5.0, 1.0, 1.0]] * 2
    assert vmap(lambda v: written(v, 0, lambda _: T([5.0])))(rows).tolist() == [[5.0, 1.0, 1.0]] * 2
    assert vmap(lambda v: written(v, T([0, 1]), lambda v: v[None, :2] * 5))(rows).tolist() == [[5.0, 5.0, 1.0]] * 2


def test_one_number_at_a_mask_may_be_of_another_dtype():
    x = resilin.tensor([1.0, 2.0])
    x.index_put_((resilin.tensor([True, False]),), resilin.tensor(9))
    assert x.tolist() == [9.0, 2.0]
    with pytest.raises(RuntimeError, match="need one dtype"):
        x.index_put_((resilin.tensor([0]),), resilin.tensor(9))


@pytest.mark.parametrize("value", [None, "a", b"a"])
def test_what_is_no_number_cannot_be_assigned(value):
    x = resilin.zeros(2, 3)
    with pytest.raises(TypeError, match=f"can't assign a {type(value).__name__} to a tensor of resilin.float32"):
        x[0] = value
    assert x.tolist() == [[0] * 3] * 2
    assert x._version == 0


@pytest.mark.parametrize("dtype", [resilin.int64, resilin.float32, resilin.bfloat16])
def test_overlapping_elements_are_copied_as_they_were_before(dtype):
    for step, other in ((2, 1), (1, 2), (3, 2), (2, 3), (1, 1), (2, 2)):
        for start in range(5):
            for begin in range(5):
                count = min((24 - start + step - 1) // step, (24 - begin + other - 1) // other)
                to = slice(start, start + step * (count - 1) + 1, step)
                of = slice(begin, begin + other * (count - 1) + 1, other)
                expected = np.arange(24)
                expected[to] = expected[of].copy()
                copied, assigned = (resilin.arange(24, dtype=dtype) for _ in range(2))
                copied[to].copy_(copied[of])
                assigned[to] = assigned[of]
                assert copied.tolist() == assigned.tolist() == expected.tolist(), (to, of)


def test_overlapping_elements_turned_around_or_in_a_row_are_copied_as_they_were_before():
    x = resilin.arange(12)
    x[1::2].copy_(x[3:9])
    assert x.tolist() == [0, 3, 2, 4, 4, 5, 6, 6, 8, 7, 10, 8]
    x = resilin.arange(12).reshape(3, 4)
    x[1] = x[:, 1:2].expand(3, 4)[1]
    x.view(-1)[1:9:2] = x[0]
    assert x.tolist() == [[0, 0, 2, 1], [5, 2, 5, 3], [8, 9, 10, 11]]
