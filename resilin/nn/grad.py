"""Gradients of convolutions by themselves, from shapes: names of torch.nn.grad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilin.core.autograd.grad import grad
from resilin.core.autograd.grad_mode import enable_grad
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.nn import functional as F

__all__ = ["conv1d_input", "conv1d_weight", "conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight"]


def _of_input(convolve: Callable[..., Tensor], size: Any, weight: Tensor, grad_output: Tensor, *window: Any) -> Tensor:
    with enable_grad():
        input = creation.zeros(size, dtype=weight.dtype, device=weight.device, requires_grad=True)
        y = convolve(input, weight.detach(), None, *window)
    found: Tensor = grad(y, input, grad_output)[0]
    return found


def _of_weight(convolve: Callable[..., Tensor], input: Tensor, size: Any, grad_output: Tensor, *window: Any) -> Tensor:
    with enable_grad():
        weight = creation.zeros(size, dtype=input.dtype, device=input.device, requires_grad=True)
        y = convolve(input.detach(), weight, None, *window)
    found: Tensor = grad(y, weight, grad_output)[0]
    return found


def conv1d_input(
    input_size: Any,
    weight: Tensor,
    grad_output: Tensor,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv1d's input of `input_size`, for the gradient `grad_output` of its output."""
    return _of_input(F.conv1d, input_size, weight, grad_output, stride, padding, dilation, groups)


def conv1d_weight(
    input: Tensor,
    weight_size: Any,
    grad_output: Tensor,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv1d's weight of `weight_size`, for the gradient `grad_output` of its output."""
    return _of_weight(F.conv1d, input, weight_size, grad_output, stride, padding, dilation, groups)


def conv2d_input(
    input_size: Any,
    weight: Tensor,
    grad_output: Tensor,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv2d's input of `input_size`, for the gradient `grad_output` of its output."""
    return _of_input(F.conv2d, input_size, weight, grad_output, stride, padding, dilation, groups)


def conv2d_weight(
    input: Tensor,
    weight_size: Any,
    grad_output: Tensor,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv2d's weight of `weight_size`, for the gradient `grad_output` of its output."""
    return _of_weight(F.conv2d, input, weight_size, grad_output, stride, padding, dilation, groups)


def conv3d_input(
    input_size: Any,
    weight: Tensor,
    grad_output: Tensor,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv3d's input of `input_size`, for the gradient `grad_output` of its output."""
    return _of_input(F.conv3d, input_size, weight, grad_output, stride, padding, dilation, groups)


def conv3d_weight(
    input: Tensor,
    weight_size: Any,
    grad_output: Tensor,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv3d's weight of `weight_size`, for the gradient `grad_output` of its output."""
    return _of_weight(F.conv3d, input, weight_size, grad_output, stride, padding, dilation, groups)
