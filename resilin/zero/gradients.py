"""Whether each parameter had a gradient in a step, as facts that ranks must have alike: else part of it is trained.

They go with what a step, or the forward after it, gathers anyway (`dist.agreement.compare`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from resilin.core.tensor import Tensor
from resilin.distributed.agreement.compare import Facts, Groups
from resilin.zero import loaded_state_check
from resilin.zero.flat_param import FlatParameter
from resilin.zero.options import WHY, Options

Holders = Mapping[str, Callable[[], Collection[int]]]
"""By the name of a fact: the ranks that have elements of the parameter it is about."""


class GradientFacts(Facts):
    """Facts of which those in `holders` are of gradients."""

    def __init__(self, about: str, groups: Groups, why: str, holders: Holders) -> None:
        super().__init__(about, groups, why)
        self._holders = holders

    def check(self, everybody: Sequence[Groups]) -> None:
        """See Facts. A rank without elements of a parameter needs no gradient of it; one that has some shows that those
        with elements lack theirs."""
        found = flat(everybody)
        for name, who in self._holders.items():
            holders = who()
            for rank, facts in enumerate(found):
                if rank not in holders and facts.get(name) == told(False):
                    facts[name] = next((found[one][name] for one in holders if name in found[one]), facts[name])
        super().check([[("", facts)] for facts in found])


def flat(everybody: Sequence[Groups]) -> list[dict[str, Any]]:
    """Each rank's facts by their whole names."""
    return [{name + end: value for end, each in groups for name, value in each.items()} for groups in everybody]


class Steps:
    """The steps of one optimizer of whole parameters; facts are made anew only when it does something else."""

    def __init__(self, about: str) -> None:
        self._about, self._options = about, Options(about)
        self._loaded: Mapping[int, str] = {}  # by number of the parameter: the state that nothing has compared yet
        self._seen: tuple[Facts, list[int], Mapping[int, str]] | None = None
        self._rows: Sequence[FlatParameter] = ()
        self._facts = GradientFacts(about, [], WHY, {})

    def facts(
        self, groups: Sequence[dict[str, Any]], rows: Sequence[FlatParameter], updated: Sequence[Tensor]
    ) -> Facts:
        """The options of `groups`, which of their parameters, cut into `rows`, are among those `updated`, and the state
        that was loaded, until it has been `compared`."""
        options, ids = self._options.facts(groups), list(map(id, updated))
        if (options, ids, self._loaded) != self._seen or rows is not self._rows:
            self._seen, self._rows = (options, ids, self._loaded), rows
            self._facts = self._made(options, groups, frozenset(ids))
        return self._facts

    def loaded(self, states: Mapping[int, str]) -> None:
        """States were loaded, `described`, by the numbers of their parameters: ranks must have loaded the same."""
        self._loaded = states

    def compared(self) -> None:
        """Ranks have compared the facts: what was loaded is alike."""
        self._loaded = {}

    def _made(self, options: Facts, groups: Sequence[dict[str, Any]], updated: Collection[int]) -> GradientFacts:
        entries, holders = list(options.groups), {}
        place = itertools.count()
        for number, group in enumerate(groups):
            end = f" of group {number}"
            known: dict[str, str] = {}
            for name, param in zip(_names(group), group["params"], strict=True):
                if (state := self._loaded.get(next(place))) is not None:
                    known[loaded_state_check.fact(name)] = state
                if param.numel():  # without elements there is nothing to train
                    known[f"gradient of {name}"] = told(id(param) in updated)
                    holders[f"gradient of {name}{end}"] = functools.partial(_holders, self._rows, param)
            entries.append((end, known))
        return GradientFacts(self._about, entries, WHY, holders)


def told(had: bool) -> str:
    """How facts say whether there was a gradient."""
    return "there" if had else loaded_state_check.ABSENT


def _names(group: Mapping[str, Any]) -> Sequence[str]:
    return group.get("param_names") or [f"parameter {place}" for place in range(len(group["params"]))]


def _holders(rows: Sequence[FlatParameter], param: Tensor) -> list[int]:
    """The ranks that have elements of `param`."""
    return [
        rank
        for row in rows
        for rank, pieces in enumerate(row.shares)
        if any(piece.numel and row.params[piece.param] is param for piece in pieces)
    ]
