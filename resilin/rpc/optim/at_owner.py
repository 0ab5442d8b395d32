"""Step parameters at the worker where they lie: what a DistributedOptimizer calls there."""

from __future__ import annotations

import logging
from typing import Any

from resilin._base import log
from resilin.rpc import current
from resilin.rpc.autograd import api as dist_autograd
from resilin.rpc.optim.stand_ins import StandIns, turns
from resilin.rpc.references.rref import RRef

_LOG = log.logger("rpc.optim")
_everything = object()  # what optimizers of programs may share
_said: set[Any] = set()


class LocalOptimizer:
    """An optimizer of parameters of this worker. is_functional: `step` gets the gradients."""

    def __init__(self, kind: Any, params_rref: list[RRef[Any]], is_functional: bool, args: Any, kwargs: Any) -> None:
        self._parameters = [rref.local_value() for rref in params_rref]
        self._stand_ins = None if is_functional else StandIns(self._parameters)
        if self._stand_ins is not None and kind not in _said:
            _said.add(kind)
            log.event(
                _LOG,
                logging.WARNING,
                "steps of an optimizer hold the interpreter lock: it has no native kernel of its own",
                optimizer=f"{kind.__module__}.{kind.__qualname__}",
            )
        self.optim = kind(self._parameters if self._stand_ins is None else self._stand_ins.tensors, *args, **kwargs)

    def step(self, context_id: int) -> None:
        """Step the parameters by the gradients that a context has of them."""
        found = dist_autograd.get_gradients(context_id)
        of_each = [found.get(parameter) for parameter in self._parameters]
        limit_s = current.require().timeout_s or None
        if self._stand_ins is None:
            with turns.over(self._parameters, limit_s):
                self.optim.step(of_each)
        else:
            with turns.over([*self._parameters, _everything], limit_s), self._stand_ins.with_gradients(of_each):
                self.optim.step()


def make(kind: Any, params_rref: list[RRef[Any]], is_functional: bool, args: Any, kwargs: Any) -> RRef[LocalOptimizer]:
    """Return a reference to a new optimizer."""
    return RRef(LocalOptimizer(kind, params_rref, is_functional, args, kwargs))


def step(optimizer: RRef[LocalOptimizer], context_id: int) -> None:
    """Make a step of an optimizer of this worker."""
    optimizer.local_value().step(context_id)
