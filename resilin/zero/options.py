"""The options of optimizers' steps, as facts that all ranks must have alike: each rank updates its range with its own.

They go with what a step, or the forward after it, gathers anyway (`dist.compared`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.tensor import Tensor
from resilin.dist.compared import Facts
from resilin.zero.owned import NOT_OPTIONS

_PLAIN = frozenset({bool, int, float, str, type(None)})
WHY = "each rank updates its range with its own, so all must set the same"
_UNKNOWN = object()


class Options:
    """The options of one optimizer's groups; the facts are made anew only when one has changed."""

    def __init__(self, about: str, of: str = "") -> None:
        self._about, self._of = about, of
        self._seen: list[dict[str, Any]] = []
        self._facts = Facts(about, [], WHY)

    def facts(self, groups: Sequence[dict[str, Any]]) -> Facts:
        """Those of `groups` as they are now; options that are no plain values are left out."""
        seen = list(map(_plain_options, groups))
        if seen != self._seen:
            titled = [(f" of group {number}{self._of}", options) for number, options in enumerate(seen)]
            self._seen, self._facts = seen, Facts(self._about, titled, WHY)
        return self._facts


def _plain_options(group: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in group.items():
        if type(value) in _PLAIN:
            found[name] = value
        elif name not in NOT_OPTIONS and (plain := _plain(value)) is not _UNKNOWN:
            found[name] = plain
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        found = [_plain(each) for each in value]
        return _UNKNOWN if any(each is _UNKNOWN for each in found) else found
    return value if type(value) in _PLAIN else _UNKNOWN
