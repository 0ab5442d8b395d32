"""Tensors made in inference mode stay out of graphs, and only that mode may change them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin


@pytest.fixture
def made_inside() -> Any:
    with resilin.inference_mode():
        return resilin.ones(3)


def test_what_is_made_in_inference_mode_says_so(made_inside: Any) -> None:
    weight = resilin.ones(3, requires_grad=True)
    with resilin.inference_mode():
        assert (weight * 2).is_inference()
        assert not weight.view(3).is_inference()
        made_inside.add_(1)
    assert made_inside.is_inference()
    assert made_inside[0].is_inference()
    assert made_inside.data.is_inference()
    assert not (made_inside + 1).is_inference()
    assert not made_inside.clone().is_inference()
    assert not weight.is_inference()


def test_backward_cannot_save_an_inference_tensor(made_inside: Any) -> None:
    weight = resilin.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot be saved for backward"):
        made_inside * weight
    (made_inside + weight).sum().backward()
    (made_inside.clone() * weight).sum().backward()
    assert weight.grad.tolist() == [2, 2, 2]


def _set_item(x: Any) -> None:
    x[0] = 3


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x.exp_(),
        lambda x: x.zero_(),
        lambda x: x.copy_(resilin.ones(3)),
        _set_item,
        lambda x: x.view(3).mul_(2),
        lambda x: x.data.add_(1),
    ],
)
def test_an_inference_tensor_is_changed_in_inference_mode_only(made_inside: Any, write: Any) -> None:
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"), resilin.no_grad():
        write(made_inside)
    assert made_inside.tolist() == [1, 1, 1]
    with resilin.inference_mode():
        write(made_inside)


def test_an_inference_tensor_cannot_become_a_leaf_outside(made_inside: Any) -> None:
    with pytest.raises(RuntimeError, match="requires_grad=True on inference tensor"):
        made_inside.requires_grad_()


def test_writing_into_read_only_memory_names_that_cause() -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    with pytest.raises(RuntimeError, match="read-only"):
        resilin.from_numpy(array).add_(1)
    with pytest.raises(RuntimeError, match="single memory location"):
        resilin.zeros(1).expand(3).add_(1)
