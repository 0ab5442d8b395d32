"""The options of optimizers' steps, as facts that all ranks must have alike: each rank updates its range with its own.

They go with what a step, or the forward after it, gathers anyway (`dist.agreement.compare`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.distributed.agreement.compare import Facts
from resilin.distributed.agreement.options import plain_options

WHY = "each rank updates its range with its own, so all must set the same"


class Options:
    """The options of one optimizer's groups; the facts are made anew only when one has changed."""

    def __init__(self, about: str, of: str = "") -> None:
        self._about, self._of = about, of
        self._seen: list[dict[str, Any]] = []
        self._facts = Facts(about, [], WHY)

    def facts(self, groups: Sequence[dict[str, Any]]) -> Facts:
        """Those of `groups` as they are now; options that are no plain values are left out."""
        seen = list(map(plain_options, groups))
        if seen != self._seen:
            titled = [(f" of group {number}{self._of}", options) for number, options in enumerate(seen)]
            self._seen, self._facts = seen, Facts(self._about, titled, WHY)
        return self._facts
