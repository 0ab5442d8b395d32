"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any

from resilin.core.kernels import optimizers as kernels
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError
from resilin.optim import lists
from resilin.optim.optimizer import Group, Optimizer, Params, fitting


class SGD(Optimizer):
    """p -= lr * d, with d the gradient plus weight_decay * p, or its momentum (Sutskever et al., 2013).

    buf = momentum * buf + (1 - dampening) * d (the first step sets buf = d); d = buf, or d + momentum * buf with
    nesterov. maximize: follow the gradient upwards. foreach and fused are accepted: every step is one native call;
    differentiable is refused.
    """

    _starts_whole = False  # with the first step that has momentum

    _twins_in_turn = False  # as in PyTorch, which reads all momenta before it moves any

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "momentum", "weight_decay")
        self._check_numbers(group, "dampening")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise UsageError("SGD: nesterov needs momentum > 0 and dampening = 0")

    def _moments(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def _update(self, group: Group) -> None:
        momentum = bool(group["momentum"])
        found = lists.usual(group["params"], self.state, (), ("momentum_buffer",) if momentum else ())
        if found is not None:
            self._apply(group, found[0], found[3], first=False)
            return
        parameters = [p for p in group["params"] if p._grad is not None]
        if not momentum:
            self._apply(group, parameters, lists.arrays(parameters, (), ()), first=False)
            return
        fresh = [p for p in parameters if self.state[p].get("momentum_buffer") is None]
        for p in fresh:
            self.state[p]["momentum_buffer"] = wrap(p._dev.xp.empty_like(p._array), p._dev)
        if len(fresh) < len(parameters):
            new = {id(p) for p in fresh}
            self._apply_momentum(group, [p for p in parameters if id(p) not in new], first=False)
        self._apply_momentum(group, fresh, first=True)

    def _apply_momentum(self, group: Group, parameters: list[Tensor], first: bool) -> None:
        entries = [self.state[p] for p in parameters]
        self._apply(group, parameters, lists.arrays(parameters, entries, ("momentum_buffer",)), first)

    def _apply(self, group: Group, parameters: list[Any], arrays: list[list[Any]], first: bool) -> None:
        if not parameters:
            return
        buffers = arrays[2] if len(arrays) > 2 else None
        with fitting("SGD", parameters, ("grad", "momentum_buffer"), (arrays[1], buffers)):
            kernels.sgd(
                arrays[0],
                arrays[1],
                buffers,
                lr=float(group["lr"]),
                momentum=float(group["momentum"]),
                dampening=float(group["dampening"]),
                weight_decay=float(group["weight_decay"]),
                nesterov=group["nesterov"],
                maximize=group["maximize"],
                first=first,
            )
        lists.advance(parameters, [], (), ())
