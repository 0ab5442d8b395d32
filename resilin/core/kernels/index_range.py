"""Looks for indices out of range: on the host at once, on a device by a kernel, for which nobody waits."""

from __future__ import annotations

from typing import Any

from resilin.core.kernels import places
from resilin.core.kernels.common import array_namespace, is_readable
from resilin.core.kernels.cuda import index_range
from resilin.core.kernels.loader import kernel

within = kernel("integers_within")
"""Whether all integers of an array lie in [low, high); None, and False, say nothing: they have to be looked at."""


def check(index: Any, low: int, high: int, error: type[Exception], text: str) -> None:
    """Raise error(text) if an element of `index` is outside [low, high); {value} in the text names it.

    For a device's array: where the host next waits for the device, and before an optimizer changes anything.
    """
    if within(index, low, high) or not is_readable(index):
        return
    xp = array_namespace(index)
    if hasattr(xp, "launch"):
        index_range.check(xp, places.once(index), low, high, error, text)
        return
    least, most = places.range_of(index)
    if least < low or most >= high:
        raise error(text.format(value=least if least < low else most))
