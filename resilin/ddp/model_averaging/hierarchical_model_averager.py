"""Averages over small groups often and over large ones seldom (Lin et al. 2020, hierarchical SGD)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import resilin.distributed as dist
from resilin.core.argument_checks import whole
from resilin.ddp.model_averaging import utils
from resilin.ddp.model_averaging.agreeing import Agreement
from resilin.ddp.model_averaging.averagers import ModelAverager, warn_of_period_1
from resilin.errors import UsageError, UsageTypeError


class HierarchicalModelAverager(ModelAverager):
    """Averages over groups of `period_group_size_dict[period]` ranks every `period` steps, {2: 4, 8: 16} for example.

    Where several periods divide the step, the largest group counts alone. Periods and sizes grow, each size divides the
    next one, and the last one is that of `process_group`. Every rank makes it, at the same point: it makes groups of
    runs of ranks; what they give is compared then, and CollectiveMismatch on all names what differs. Make a new one in
    each generation of `elastic.run`, and give it the former one's `state_dict()`.
    """

    def __init__(
        self,
        period_group_size_dict: Mapping[int, int] | None = None,
        warmup_steps: int = 0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(process_group or dist.default_group())
        name, parent = type(self).__name__, self._group()
        if not isinstance(period_group_size_dict, Mapping | None):
            raise UsageTypeError(
                f"{name}: period_group_size_dict must be a mapping {{period: group size}}, got "
                f"{period_group_size_dict!r:.80}"
            )
        if not period_group_size_dict:
            raise UsageError(f"{name}: period_group_size_dict must not be empty: give {{period: group size}}")
        self.warmup_steps = warmup_steps = whole(f"{name}: warmup_steps", warmup_steps)
        periods = [whole(f"{name}: a period", period, least=1) for period in period_group_size_dict]
        sizes = [whole(f"{name}: a group size", size, least=1) for size in period_group_size_dict.values()]
        if periods != sorted(set(periods)) or sizes != sorted(sizes):
            raise UsageError(
                f"{name}: expected positive periods and group sizes that grow, got {dict(period_group_size_dict)}"
            )
        if sizes[-1] != parent.size():
            raise UsageError(f"{name}: the last group has {sizes[-1]} ranks, it must have all {parent.size()}")
        if periods[-1] == 1:
            warn_of_period_1(name)
        given = [list(pair) for pair in zip(periods, sizes, strict=True)]
        facts = {"period_group_size_dict": given, "warmup_steps": warmup_steps}
        Agreement(name).reach(parent, lambda: facts)  # before groups are made of it
        self._agreement = Agreement(name)
        self._together = math.lcm(*periods)
        self.period_process_group_dict: dict[int, Any] = {
            period: parent if size == parent.size() else dist.new_subgroups(size, group=parent)[0]
            for period, size in zip(periods, sizes, strict=True)
        }

    def average_parameters(self, params: Iterable[Any]) -> None:
        """Average over the largest group whose period divides the step, from `warmup_steps` on."""
        self._agreement.reach(self._group(), lambda: {"place in the periods": self._place()})
        if self.step >= self.warmup_steps:
            due = [group for period, group in self.period_process_group_dict.items() if self.step % period == 0]
            if due:
                utils.average_parameters_or_parameter_groups(params, due[-1], self.traffic)
        self.step += 1

    def _place(self) -> int:
        """Below 0 before the first average, else where in the longest of the periods."""
        return self.step - self.warmup_steps if self.step < self.warmup_steps else self.step % self._together
