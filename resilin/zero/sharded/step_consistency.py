"""What ranks compare over steps of pieces: each updates its range alone, so a tensor might be trained in part.

It goes with what the next fetch gathers anyway (`dist.agreement.compare`):

options     of each group of the optimizers that stepped since the last fetch (`zero/options.py`)
groups      in which one each parameter is, by its name
gradients   whether the step had one of it; a rank without elements of it may be without
states      what there was of each parameter before the step, if it was loaded or begun since the last one
trained     whether the parameters of the unit that is fetched require gradients
"""

from __future__ import annotations

import functools
import math
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from resilin.core.tensor import Tensor
from resilin.distributed.agreement.compare import Facts, Groups
from resilin.optim import Optimizer
from resilin.zero.gradients import GradientFacts, flat, told
from resilin.zero.loaded_state_check import ABSENT, described, fact
from resilin.zero.options import WHY, Options
from resilin.zero.sharded.unit import ShardedParameter, Unit

_ABOUT = "zero.shard"
_LAST, _NEW = "that of the last step", "loaded or begun since"
_WHY = f"{WHY}, and make groups by name or logical_shape (numel() and shape are those of the piece)"


Pieces = Mapping[str, ShardedParameter]


class StepFacts(GradientFacts):
    """Facts of which some are of gradients, and some of states: pieces by the names of these."""

    def __init__(self, groups: Groups, gradients: Pieces, states: Pieces | None = None) -> None:
        holders = {name: functools.partial(_holders, piece) for name, piece in gradients.items()}
        super().__init__(_ABOUT, groups, _WHY, holders)
        self.gradients, self.states = gradients, states or {}

    def check(self, everybody: Sequence[Groups]) -> None:
        """See Facts. A rank without elements of a parameter needs no state of it; one that has some shows that those
        with elements lack theirs."""
        found = flat(everybody)
        for name, piece in self.states.items():
            holders = _holders(piece)
            for rank, facts in enumerate(found):
                if name in facts and rank not in holders:
                    theirs = next((found[one][name] for one in holders if name in found[one]), facts[name])
                    facts[name] = facts[name] if theirs == ABSENT else theirs
        super().check([[("", facts)] for facts in found])


class Steps:
    """The steps of optimizers of the pieces of `units` that nothing has compared yet."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = units
        self._known: weakref.WeakKeyDictionary[Optimizer, _Optimizer] = weakref.WeakKeyDictionary()
        self._pending: dict[int, StepFacts] = {}  # by id of the optimizer, in the order of their first steps
        self._trained: dict[int, tuple[list[bool], StepFacts]] = {}  # by unit: which are, and that as facts
        self._merged: tuple[tuple[StepFacts, ...], StepFacts] = ((), StepFacts([], {}))  # the last ones, together

    def begin(self, optimizer: Optimizer) -> None:
        """`optimizer` is about to step."""
        self._of(optimizer).begins(optimizer)

    def add(self, optimizer: Optimizer) -> None:
        """`optimizer` has stepped."""
        self._pending[id(optimizer)] = self._of(optimizer).stepped(optimizer)

    def groups(self, optimizer: Optimizer) -> Facts:
        """In which group of `optimizer` each parameter is, whether it has stepped or not."""
        return self._of(optimizer).grouped(optimizer)

    def _of(self, optimizer: Optimizer) -> _Optimizer:
        if optimizer not in self._known:
            self._known[optimizer] = _Optimizer(type(optimizer).__name__, self._units)
        return self._known[optimizer]

    def take(self, units: Sequence[Unit]) -> Facts:
        """What is to be compared when `units` are fetched. Each step is once."""
        parts = (*self._pending.values(), *map(self._trained_in, units))
        steps = len(self._pending)
        for optimizer in [each for each in self._known if id(each) in self._pending] if steps else ():
            self._known[optimizer].compared()
        self._pending = {}
        if len(parts) == 1:
            return parts[0]
        if parts != self._merged[0]:
            self._merged = parts, _together(parts, steps)
        return self._merged[1]

    def forget(self) -> None:
        """Those who stepped with this rank are gone; others may have come, for whom each optimizer is a new one."""
        self._pending = {}
        for known in self._known.values():
            known.forget()

    def _trained_in(self, unit: Unit) -> StepFacts:
        trained = [piece._rg for piece in unit.pieces]
        known = self._trained.get(unit.index)
        if known is None or known[0] != trained:
            named = {f"requires_grad of {name}": rg for name, rg in zip(unit.names, trained, strict=True)}
            known = self._trained[unit.index] = trained, StepFacts([("", named)], {})
        return known[1]


class _Optimizer:
    """What one optimizer does with pieces of `units`; facts are made anew only when it does something else."""

    def __init__(self, kind: str, units: Sequence[Unit]) -> None:
        self._kind, self._units = kind, units
        self._options = Options(_ABOUT, f" of {kind}")
        self._lists: list[list[Tensor]] = []  # of each group, as it was
        self._pieces: dict[str, ShardedParameter] = {}  # those of the units, by name
        self._groups = Facts(_ABOUT, [], _WHY)
        self._state: Mapping[Any, Any] | None = None  # that of the last step: who loads another replaces it
        self._before: dict[str, str] | None = None  # the states before the first step that is not compared, if new
        self._seen: tuple[Facts, Facts, list[bool], dict[str, str] | None] | None = None
        self._facts = StepFacts([], {})

    def begins(self, optimizer: Optimizer) -> None:
        """See Steps.begin."""
        if optimizer.state is not self._state:
            self.grouped(optimizer)
            self._state = state = optimizer.state
            filled = {name: piece for name, piece in self._pieces.items() if math.prod(piece.logical_shape)}
            self._before = {name: described(state.get(piece)) for name, piece in filled.items()}

    def compared(self) -> None:
        """Its steps are being compared."""
        self._before = None

    def forget(self) -> None:
        """Let the states before the next step count as new."""
        self._state = None

    def grouped(self, optimizer: Optimizer) -> Facts:
        """See Steps.groups."""
        lists = [group["params"] for group in optimizer.param_groups]
        if len(lists) != len(self._lists) or not all(map(_same, lists, self._lists)):
            self._lists = [list(each) for each in lists]
            self._sort()
        return self._groups

    def _sort(self) -> None:
        self._pieces, places = {}, {}
        for number, params in enumerate(self._lists):
            for param in params:
                unit = param.unit() if isinstance(param, ShardedParameter) else None
                if unit is not None and any(unit is own for own in self._units):
                    assert isinstance(param, ShardedParameter), "it has a unit"
                    self._pieces[unit.names[param.place]] = param
                    places[f"parameter {unit.names[param.place]}"] = f"in group {number}"
        self._groups = Facts(_ABOUT, [(f" of {self._kind}", places)], _WHY)

    def stepped(self, optimizer: Optimizer) -> StepFacts:
        """Facts of the step that it has made."""
        options, groups = self._options.facts(optimizer.param_groups), self.grouped(optimizer)
        lacking = [piece._grad is None for piece in self._pieces.values()]
        before = self._before
        if (options, groups, lacking, before) != self._seen:
            self._seen = options, groups, lacking, before
            end = f" in the step of {self._kind}"
            had = {f"gradient of {name}": told(not lacks) for name, lacks in zip(self._pieces, lacking, strict=True)}
            states = {fact(name): state for name, state in (before or {}).items() if name in self._pieces}
            # options of the first group before all: a rank that left the step out has none
            entries = [*options.groups[:1], *groups.groups, *options.groups[1:], self._new(before), (end, states | had)]
            pieces = {name + end: piece for name, piece in zip(had, self._pieces.values(), strict=True)}
            of_states = {fact(name) + end: piece for name, piece in self._pieces.items() if fact(name) in states}
            self._facts = StepFacts(entries, pieces, of_states)
        return self._facts

    def _new(self, before: Any) -> tuple[str, Mapping[str, str]]:
        """Whether the state is another than that of the last step."""
        return f" of {self._kind}", {"the state": _LAST if before is None else _NEW}


def _same(params: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    return len(params) == len(before) and all(map(operator.is_, params, before))


def _holders(piece: ShardedParameter) -> range:
    """The ranks that have elements of a parameter."""
    unit = piece.unit()
    if unit is None:
        return range(0)
    start, stop = unit.starts[piece.place], unit.starts[piece.place + 1]
    return range(start // unit.share, -(-stop // unit.share)) if stop > start else range(0)


def _together(parts: Sequence[StepFacts], steps: int) -> StepFacts:
    """One for all of `parts`, of which the first are `steps` of optimizers."""
    groups: list[tuple[str, Any]] = []
    gradients: dict[str, ShardedParameter] = {}
    states: dict[str, ShardedParameter] = {}
    for number, facts in enumerate(parts):
        which = f" (optimizer {number})" if 1 < steps > number else ""
        groups += [(end + which, each) for end, each in facts.groups]
        gradients |= {name + which: piece for name, piece in facts.gradients.items()}
        states |= {name + which: piece for name, piece in facts.states.items()}
    return StepFacts(groups, gradients, states)
