"""Optimizers whose step is one formula over the elements: one native call steps all parameters of a group."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from resilin.core.kernels import optimizer_rules
from resilin.core.tensor import Tensor, wrap
from resilin.optim import lists
from resilin.optim.optimizer import Group, Optimizer, fitting

Counters = tuple[float, ...]
Constants = tuple[float, ...]


class Elementwise(Optimizer):
    """Base of optimizers that apply a rule of core/kernels/optimizer_rules.py.

    Subclasses name the rule and the states it updates, and say how counters (0-dim states such as `step`, read and
    written around the call) become the rule's constants. Parameters with equal counters are stepped in one call; a
    complex parameter is treated as its real and imaginary parts.
    """

    _rule: ClassVar[str]
    _counters: ClassVar[tuple[str, ...]] = ("step",)
    _complex = False  # whether any parameter is

    def _states(self, group: Group) -> tuple[str | None, ...]:
        """The names of the states the rule updates, in its order; None for one that this group does without."""
        raise NotImplementedError(f"{type(self).__name__} must define _states(group)")

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        """The counters after this step, and the rule's constants for it."""
        raise NotImplementedError(f"{type(self).__name__} must define _advance(group, counters)")

    def _first_counter(self, group: Group, name: str) -> float:
        """What a counter is before the first step."""
        return 0.0

    def _first_state(self, group: Group, name: str) -> float:
        """What all elements of a state are before the first step."""
        return 0.0

    def add_param_group(self, param_group: Group) -> None:
        """See Optimizer."""
        super().add_param_group(param_group)
        if any(p.is_complex() for p in self.param_groups[-1]["params"]):
            self._complex = True

    def _moments(self, group: Group) -> tuple[str, ...]:
        return tuple(name for name in self._states(group) if name is not None)

    def _start(self, p: Tensor, group: Group) -> None:
        state = self.state[p]
        for counter in self._counters:
            state[counter] = Tensor._wrap(np.full((), self._first_counter(group, counter), np.float32))
        for name in self._moments(group):
            value = self._first_state(group, name)
            first = complex(value, value) if p.is_complex() else value
            state[name] = wrap(p._dev.xp.full_like(p._array, first), p._dev)

    def _update(self, group: Group) -> None:
        moments = self._moments(group)
        found = lists.usual(group["params"], self.state, self._counters, moments)
        if found is not None:
            parameters, entries, counted, arrays = found
            self._apply(group, tuple(counted), parameters, entries, arrays)
            return
        # nearly always one batch: only parameters that had no gradient at times are behind
        batches: dict[Counters, list[Tensor]] = {}
        for p in group["params"]:
            if p._grad is None:
                continue
            if not self.state[p]:
                self._start(p, group)
            state = self.state[p]
            counters = tuple([float(state[name]._array) for name in self._counters])
            batches.setdefault(counters, []).append(p)
        for counters, parameters in batches.items():
            entries = [self.state[p] for p in parameters]
            self._apply(group, counters, parameters, entries, lists.arrays(parameters, entries, moments))

    def _apply(
        self,
        group: Group,
        counters: Counters,
        parameters: list[Any],
        entries: list[dict[str, Any]],
        arrays: list[list[Any]],
    ) -> None:
        after, constants = self._advance(group, counters)
        left = iter(arrays)
        given: list[list[Any] | None] = [next(left), next(left)]
        given += [None if name is None else next(left) for name in self._states(group)]
        if self._complex:
            given = [each and [part for array in each for part in parts(array)] for each in given]
        with fitting(type(self).__name__, parameters, ("grad", *self._moments(group)), arrays[1:]):
            optimizer_rules.apply(self._rule, given, constants)
        lists.advance(parameters, entries, self._counters, after)


def parts(array: Any) -> tuple[Any, ...]:
    """The real and imaginary parts of a complex array, as views; a real array alone."""
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)


def gradient_and_means(group: Group) -> Constants:
    """Return sign, penalty, shrink factor, and the factors of the two running means, of NAdam and RAdam."""
    beta1, beta2 = group["betas"]
    decay, sign = float(group["weight_decay"]), -1.0 if group["maximize"] else 1.0
    if group["decoupled_weight_decay"]:
        return (sign, 0.0, 1 - float(group["lr"]) * decay, 1 - beta1, beta2, 1 - beta2)
    return (sign, decay, 1.0, 1 - beta1, beta2, 1 - beta2)
