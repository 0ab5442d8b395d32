"""Put the layers of a Sequential onto devices, some on each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from resilin.errors import UsageError
from resilin.nn.modules.container import Sequential


def partition_model(module: Sequential, balance: Sequence[int], devices: Sequence[Any] | None = None) -> Sequential:
    """Return a Sequential of as many Sequentials as `balance` has numbers, each with that number of the layers of
    `module` in order, moved to its device. devices: one for each; None: the GPUs from the first on, as in PyTorch.

    UsageError where the numbers are not those of all layers, or there is not a device for each.
    """
    if sum(balance) != len(module) or any(count < 1 for count in balance):
        raise UsageError(
            f"partition_model: expected positive numbers of layers whose sum is {len(module)}, got {list(balance)}"
        )
    chosen = range(len(balance)) if devices is None else devices
    if len(chosen) != len(balance):
        raise UsageError(f"partition_model: expected {len(balance)} devices, one for each partition, got {len(chosen)}")
    layers = iter(module)
    return Sequential(
        *(Sequential(*islice(layers, count)).to(device) for count, device in zip(balance, chosen, strict=True))
    )
