"""torch.onnx.symbolic_helper: what libraries mark their functions for an exporter with. Nothing calls those here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["parse_args", "quantized_args"]

_F = TypeVar("_F", bound=Callable[..., Any])


def parse_args(*arg_descriptors: str) -> Callable[[_F], _F]:
    """Return a decorator that returns what it is given: an exporter would make its arguments plain values."""
    return lambda function: function


def quantized_args(*arg_q_descriptors: bool, **options: Any) -> Callable[[_F], _F]:
    """Return a decorator that returns what it is given: an exporter would dequantize its arguments."""
    return lambda function: function
