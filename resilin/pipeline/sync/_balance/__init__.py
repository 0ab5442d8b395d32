"""Balance partitions by what their layers cost, measured: `balance_by_time`, `balance_by_size`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.tensor import Tensor
from resilin.nn.modules.container import Sequential
from resilin.pipeline.sync._balance import blockpartition
from resilin.pipeline.sync._balance.profile import profile_sizes, profile_times

__all__ = ["balance_by_size", "balance_by_time"]


def balance_cost(cost: Sequence[float], partitions: int) -> list[int]:
    """Return how many layers each partition has, so that the costliest partition costs least."""
    return [len(block) for block in blockpartition.solve(cost, partitions)]


def balance_by_time(
    partitions: int, module: Sequential, sample: Tensor | Sequence[Any], *, timeout: float = 1.0, device: Any = None
) -> list[int]:
    """Return how many layers each partition has, balanced by the time of forward and backward.

    Layers are copied, and run in training mode with `sample` for `timeout` seconds, at least once. device: where; None:
    where the sample is. Raises: UsageError (a ValueError) where a parameter has a gradient already, or there are more
    partitions than layers.
    """
    return balance_cost(profile_times(module, sample, timeout, device), partitions)


def balance_by_size(
    partitions: int,
    module: Sequential,
    input: Tensor | Sequence[Any],
    *,
    chunks: int = 1,
    param_scale: float = 2.0,
    device: Any = None,
) -> list[int]:
    """Return how many layers each partition has, balanced by memory: what forward leaves for backward, parameters.

    input: a whole batch, of which one sample is run; what it leaves counts for a micro-batch, one of `chunks`.
    param_scale: how many times its size a parameter takes, with its gradient and the optimizer's state: 2 or 3 for SGD,
        4 or 5 for Adam. device and errors: as `balance_by_time`.
    """
    return balance_cost(profile_sizes(module, input, chunks, param_scale, device), partitions)
