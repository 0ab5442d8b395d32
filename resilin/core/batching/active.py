"""Whether any `vmap` is running: what every op's call looks at, and nothing else. Below every op."""

from __future__ import annotations

from typing import Any

ACTIVE: list[Any] = []  # the levels of all vmaps that run just now, of all threads; empty almost always


class Unbatchable(BaseException):
    """Something was asked of a tensor with hidden dimensions that cannot be said without looking at one sample.

    Not an error: vmap catches it and goes sample by sample. It is not for the `except Exception` of the function.
    """


BATCHED: set[type] = set()  # the types of such tensors and arrays


def batched_in(values: Any) -> bool:
    """Whether there is a batched tensor or array among `values`, or in a sequence among them."""
    for value in values:
        kind = type(value)
        if kind in BATCHED or ((kind is tuple or kind is list) and value and batched_in(value)):
            return True
    return False
