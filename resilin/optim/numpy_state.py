"""States whose tensors are numpy arrays, as `np.savez` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.tensor import Tensor
from resilin.optim.state_checks import StatefulOptimizer


def with_tensors(optimizer: StatefulOptimizer, state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """`state_dict`, which fits `optimizer`, with a tensor over the memory of each array in its state.

    An array of no dimensions is a number, as `np.savez` keeps these, but where it is as long as its parameter. A count
    of steps has no dimensions.
    """
    kind = optimizer._kind
    if all([_has_tensors(entry, kind._counters) for entry in state_dict["state"].values()]):
        return dict(state_dict)
    moments = {
        key: kind._moment_shapes({**own, **saved}, param)
        for own, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True)
        for key, param in zip(saved["params"], own["params"], strict=True)
    }
    state = {
        key: {
            name: _tensor(_count(value) if name in kind._counters else value, name in moments[key])
            for name, value in entry.items()
        }
        if key in moments and isinstance(entry, Mapping)
        else entry
        for key, entry in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def _has_tensors(entry: Any, counters: tuple[str, ...]) -> bool:
    """Whether an entry is one of tensors already, with counters of no dimensions."""
    return type(entry) is dict and all(
        [type(value) is Tensor and not (name in counters and value._array.ndim) for name, value in entry.items()]
    )


def _count(value: Any) -> Any:
    """A count of steps without dimensions."""
    return value.reshape(()) if getattr(value, "ndim", 0) else value


def _tensor(value: Any, moment: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _tensor(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_tensor, value))
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if not (value.ndim or moment):
        return value.item()
    try:
        dtype = dtypes.from_numpy(value.dtype).np
    except TypeError:  # text, objects: something of the user's
        return value
    return Tensor._wrap(np.asarray(value, dtype))
