"""Random views, indices and in-place writes against numpy's, and gradients and version counters against a model."""

from __future__ import annotations

from typing import Any

import extent
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resilin

LENGTHS = st.integers(0, 4)


@st.composite
def _array(draw: Any) -> Any:
    shape = tuple(draw(st.lists(LENGTHS, min_size=1, max_size=4)))
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape)


def _slices(length: int) -> Any:
    ends = st.one_of(st.none(), st.integers(-length - 1, length + 1))
    return st.builds(slice, ends, ends, st.one_of(st.none(), st.integers(1, 3)))


@st.composite
def _basic_index(draw: Any, shape: tuple[int, ...]) -> Any:
    items: list[Any] = []
    for length in shape[: draw(st.integers(0, len(shape)))]:
        choices = [_slices(length)] + ([st.integers(-length, length - 1)] if length else [])
        items.append(draw(st.one_of(*choices)))
        if draw(st.integers(0, 4)) == 0:
            items.append(None)
    if draw(st.booleans()):
        items.append(Ellipsis)
    return tuple(items)


@st.composite
def _advanced_index(draw: Any, shape: tuple[int, ...]) -> Any:
    """Integer arrays of one shape, a mask of one dimension, slices and integers mixed; at least one array."""
    count = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    items: list[Any] = []
    masked = False
    for length in shape:
        kinds = ["slice"] + (["array", "int"] if length else []) + ([] if masked else ["mask"])
        kind = draw(st.sampled_from(kinds))
        if kind == "array":
            size = int(np.prod(count))
            flat = draw(st.lists(st.integers(-length, length - 1), min_size=size, max_size=size))
            items.append(np.array(flat, np.int64).reshape(count))
        elif kind == "mask" and not any(isinstance(item, np.ndarray) for item in items):
            items.append(np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool))
            masked = True
            count = (1,)  # what a mask of any number of elements can be broadcast with
        elif kind == "int":
            items.append(draw(st.integers(-length, length - 1)))
        else:
            items.append(draw(_slices(length)))
    return tuple(items)


def _of_tensors(index: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(resilin.tensor(item) if isinstance(item, np.ndarray) else item for item in index)


def _view(array: Any, index: tuple[Any, ...]) -> Any:
    """numpy's view for a basic index, also where it would give a scalar."""
    return array[index if Ellipsis in index else (*index, ...)]


def _steps(array: Any, index: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """PyTorch's meaning of a mixed index: integers first, as a view, then arrays, which numpy's rule places.

    (numpy itself takes an integer beside arrays for one of them.)
    """
    if not any(isinstance(item, np.ndarray) for item in index):
        return _view(array, index), (Ellipsis,)
    first = tuple(item if isinstance(item, int) else slice(None) for item in index)
    return _view(array, first), tuple(item for item in index if not isinstance(item, int))


@pytest.mark.slow
@settings(max_examples=extent.examples(150), deadline=None)
@given(st.data())
def test_basic_indices_give_views_with_numpys_elements_and_gradients_at_their_places(data: Any) -> None:
    array = data.draw(_array())
    index = data.draw(_basic_index(array.shape))
    x = resilin.tensor(array, requires_grad=True)
    y = x[index]
    np.testing.assert_array_equal(y.detach().numpy(), array[index])
    assert np.shares_memory(y.detach().numpy(), x.detach().numpy()) == (y.numel() > 0)
    y.sum().backward()
    expected = np.zeros_like(array)
    expected[index] = 1
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.slow
@settings(max_examples=extent.examples(200), deadline=None)
@given(st.data())
def test_advanced_boolean_and_mixed_indices_give_numpys_elements_and_add_up_gradients(data: Any) -> None:
    array = data.draw(_array())
    index = data.draw(_advanced_index(array.shape))
    x = resilin.tensor(array, requires_grad=True)
    y = x[_of_tensors(index)]
    view, rest = _steps(array, index)
    np.testing.assert_array_equal(y.detach().numpy(), view[rest])
    weights = np.arange(1.0, y.numel() + 1).reshape(y.shape)
    (y * resilin.tensor(weights)).sum().backward()
    expected = np.zeros_like(array)
    view, rest = _steps(expected, index)
    np.add.at(view, rest, weights)
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.slow
@settings(max_examples=extent.examples(150), deadline=None)
@given(st.data())
def test_writes_through_an_index_change_what_numpys_change_and_count_once(data: Any) -> None:
    array = data.draw(_array())
    index = data.draw(st.one_of(_basic_index(array.shape), _advanced_index(array.shape)))
    x = resilin.tensor(array)
    before = x._version
    x[_of_tensors(index)] = -1.0
    view, rest = _steps(array, index)
    view[rest] = -1.0
    np.testing.assert_array_equal(x.numpy(), array)
    assert x._version == before + 1


@pytest.mark.slow
@settings(max_examples=extent.examples(100), deadline=None)
@given(st.data())
def test_a_write_to_a_view_of_views_is_seen_by_all_and_by_the_gradient(data: Any) -> None:
    """The model: the same on a tensor without views, with a mask that says what was overwritten."""
    array = data.draw(_array())
    leaf = resilin.tensor(array, requires_grad=True)
    base = leaf * 2
    view, model = base, array * 2
    mask = np.ones_like(array)
    part = mask
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(_basic_index(view.shape))
        view, model, part = view[index], _view(model, index), _view(part, index)
    expected_view = model * 3
    view.mul_(3)
    part *= 3
    np.testing.assert_array_equal(base.detach().numpy(), array * 2 * mask)
    np.testing.assert_array_equal(view.detach().numpy(), expected_view)
    assert view._version == base._version == 1
    base.sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), 2 * mask)


@settings(max_examples=extent.examples(60), deadline=None)
@given(st.data())
def test_a_saved_tensor_written_through_any_view_is_noticed_in_backward(data: Any) -> None:
    array = data.draw(_array())
    leaf = resilin.tensor(array, requires_grad=True)
    base = leaf * 1
    result = base.square().sum()
    base[data.draw(_basic_index(array.shape))].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
