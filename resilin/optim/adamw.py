"""AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilin.core.tensor import Tensor
from resilin.optim.adam import Adam
from resilin.optim.optimizer import Params


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): p *= 1 - lr * weight_decay before each step.

    It stays so with the state of an Adam that is loaded.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        super()._load(state_dict)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True
