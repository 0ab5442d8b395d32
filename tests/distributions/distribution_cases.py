"""PyTorch's recorded numbers of distributions, and how they are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import resilin

FIXTURES = Path(__file__).parents[1] / "fixtures"


def recorded(name: str) -> list[dict[str, Any]]:
    """The cases of a file of PyTorch's numbers, tensors as arrays."""
    return [_unpacked(case) for case in json.loads((FIXTURES / f"torch_{name}.json").read_text())]


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and "dtype" in value:
        return np.array(value["data"], dtype=value["dtype"]).reshape(value["shape"])
    if isinstance(value, dict):
        return {key: _unpacked(item) for key, item in value.items()}
    return [_unpacked(item) for item in value] if isinstance(value, list) else value


def tensors(values: Any, *, grad: tuple[str, ...] | None = None) -> Any:
    """Arrays as tensors, those of a dict as leaves that require gradients unless they are in `grad`."""
    if isinstance(values, dict):
        made = {key: tensors(value) for key, value in values.items()}
        for key, value in made.items():
            if grad is not None and key not in grad and isinstance(value, resilin.Tensor):
                value.requires_grad_()
        return made
    if isinstance(values, list):
        return [tensors(value) for value in values]
    return resilin.from_numpy(values.copy()) if isinstance(values, np.ndarray) else values


def close(got: Any, expected: Any, what: Any, rtol: float = 1e-9) -> None:
    """Both are equal within `rtol`, NaN and infinity at the same places."""
    array = got.detach().numpy() if isinstance(got, resilin.Tensor) else np.asarray(got)
    assert array.shape == expected.shape, (what, array.shape, expected.shape)
    np.testing.assert_allclose(array, expected, rtol=rtol, atol=rtol, err_msg=str(what))
