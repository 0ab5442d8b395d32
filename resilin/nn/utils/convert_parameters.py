"""Parameters as one vector and back."""

from __future__ import annotations

from collections.abc import Iterable

from resilin.core.api.manipulation.joining import cat
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters, in order, in one dimension. Differentiable."""
    return cat([parameter.reshape(-1) for parameter in parameters], dim=0)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Set the parameters from such a vector: their `data` become views of it. UsageError when the length differs."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"vector_to_parameters: expected a Tensor, got {type(vec).__name__}")
    every = list(parameters)
    total = sum(parameter.numel() for parameter in every)
    if vec.dim() != 1 or vec.numel() != total:
        raise UsageError(f"vector_to_parameters: expected a vector of {total} elements, got shape {tuple(vec.shape)}")
    whole, start = vec.data.contiguous(), 0
    for parameter in every:
        stop = start + parameter._array.size
        part = wrap(whole._array[start:stop].reshape(parameter._array.shape), whole._dev)
        part._vc = whole._vc  # writes of the vector are counted as the parameter's
        parameter.data = part
        start = stop
