"""Optimizers that get gradients as arguments, under PyTorch's names of its scripted ones.

Each steps all parameters in one native call, which releases the interpreter lock: the classes of `resilin.optim` whose
step is a fused kernel. Options are those of the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

import resilin.optim as optim
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.rpc.optim.stand_ins import StandIns


class FunctionalOptimizer:
    """Step parameters by gradients that are given. Subclasses name the optimizer whose steps are made.

    params: tensors; with `_allow_empty_param_list` none, which `step_param` adds one by one.
    """

    _kind: ClassVar[type[optim.Optimizer]]
    _lr: ClassVar[float | None] = None
    """The rate where none is given, if it is another than the optimizer's."""

    def __init__(
        self, params: Sequence[Tensor], *args: Any, _allow_empty_param_list: bool = False, **kwargs: Any
    ) -> None:
        if len(params) == 0 and not _allow_empty_param_list:
            raise UsageError("optimizer got an empty parameter list")
        if self._lr is not None and not args:
            kwargs.setdefault("lr", self._lr)
        stand_ins = StandIns(params)
        self._of: dict[int, tuple[Tensor, StandIns]] = {}
        """By id of a parameter that `step_param` was called with: that parameter, which keeps its id, and its own."""
        nothing: Any = [Tensor._wrap(np.zeros(0, np.float32))]
        self._stand_ins = stand_ins
        self._optimizer: Any = self._kind(stand_ins.tensors or nothing, *args, **kwargs)
        self._group = self._optimizer.param_groups[0]
        self._group["params"] = list(stand_ins.tensors)
        self.param_group: dict[str, Any] = {"params": list(params)}

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the options of every step."""
        return {name: value for name, value in self._group.items() if name != "params"}

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """Return what is kept of each parameter that was stepped."""
        pairs = list(zip(self.param_group["params"], self._stand_ins.tensors, strict=True))
        pairs += [(parameter, own.tensors[0]) for parameter, own in self._of.values()]
        kept = self._optimizer.state
        return {parameter: kept[stand_in] for parameter, stand_in in pairs if stand_in in kept}

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Step all parameters, in place. gradients: in their order; None leaves a parameter as it is."""
        params = self.param_group["params"]
        if len(params) != len(gradients):
            raise UsageError(
                "the gradients passed in does not equal to the size of the parameters!"
                f"Params length: {len(params)}. Gradients length: {len(gradients)}"
            )
        self._run(self._stand_ins, gradients)

    def step_param(self, param: Tensor, grad: Tensor | None) -> None:
        """Step one parameter, which may be a new one, by its gradient."""
        for place, known in enumerate(self.param_group["params"]):
            if known is param:
                gradients: list[Tensor | None] = [None] * len(self.param_group["params"])
                gradients[place] = grad
                self._run(self._stand_ins, gradients)
                return
        own = self._of.setdefault(id(param), (param, StandIns([param])))[1]
        self._run(own, [grad])

    def _run(self, stand_ins: StandIns, gradients: Sequence[Tensor | None]) -> None:
        self._group["params"] = list(stand_ins.tensors)
        with stand_ins.with_gradients(gradients):
            self._optimizer.step()


class _FunctionalAdadelta(FunctionalOptimizer):
    """Step as `resilin.optim.Adadelta` does, by gradients that are given."""

    _kind = optim.Adadelta


class _FunctionalAdagrad(FunctionalOptimizer):
    """Step as `resilin.optim.Adagrad` does, by gradients that are given."""

    _kind = optim.Adagrad


class _FunctionalAdam(FunctionalOptimizer):
    """Step as `resilin.optim.Adam` does, by gradients that are given."""

    _kind = optim.Adam


class _FunctionalAdamax(FunctionalOptimizer):
    """Step as `resilin.optim.Adamax` does, by gradients that are given."""

    _kind = optim.Adamax


class _FunctionalAdamW(FunctionalOptimizer):
    """Step as `resilin.optim.AdamW` does, by gradients that are given."""

    _kind = optim.AdamW


class _FunctionalASGD(FunctionalOptimizer):
    """Step as `resilin.optim.ASGD` does, by gradients that are given."""

    _kind = optim.ASGD


class _FunctionalLion(FunctionalOptimizer):
    """Step as `resilin.optim.Lion` does, by gradients that are given."""

    _kind = optim.Lion


class _FunctionalNAdam(FunctionalOptimizer):
    """Step as `resilin.optim.NAdam` does, by gradients that are given."""

    _kind = optim.NAdam


class _FunctionalRAdam(FunctionalOptimizer):
    """Step as `resilin.optim.RAdam` does, by gradients that are given."""

    _kind = optim.RAdam


class _FunctionalRMSprop(FunctionalOptimizer):
    """Step as `resilin.optim.RMSprop` does, by gradients that are given."""

    _kind = optim.RMSprop


class _FunctionalRprop(FunctionalOptimizer):
    """Step as `resilin.optim.Rprop` does, by gradients that are given."""

    _kind = optim.Rprop


class _FunctionalSGD(FunctionalOptimizer):
    """Step as `resilin.optim.SGD` does, by gradients that are given."""

    _kind = optim.SGD
    _lr = 1e-2  # of PyTorch's functional SGD
