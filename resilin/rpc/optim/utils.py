"""Say which optimizers are stepped by native code without the interpreter lock, and let programs add theirs."""

from __future__ import annotations

from typing import Any

import resilin.optim as optim
from resilin.errors import UsageError
from resilin.rpc.optim import functional

functional_optim_map: dict[Any, Any] = {
    optim.Adadelta: functional._FunctionalAdadelta,
    optim.Adagrad: functional._FunctionalAdagrad,
    optim.Adam: functional._FunctionalAdam,
    optim.AdamW: functional._FunctionalAdamW,
    optim.Adamax: functional._FunctionalAdamax,
    optim.ASGD: functional._FunctionalASGD,
    optim.Lion: functional._FunctionalLion,
    optim.NAdam: functional._FunctionalNAdam,
    optim.RAdam: functional._FunctionalRAdam,
    optim.RMSprop: functional._FunctionalRMSprop,
    optim.Rprop: functional._FunctionalRprop,
    optim.SGD: functional._FunctionalSGD,
}
"""An optimizer's class, or any other key -> the class that gets gradients as arguments."""


def register_functional_optim(key: Any, optim: Any) -> None:
    """Let `DistributedOptimizer(key, ...)` make an `optim` at the owners; a key that is known stays what it is.

    `optim(params, *args, **kwargs)` has a method `step(gradients)`, with None for parameters that have none.
    """
    functional_optim_map.setdefault(key, optim)


def as_functional_optim(optim_cls: type, *args: Any, **kwargs: Any) -> Any:
    """Return the functional optimizer of `optim_cls`, without parameters: `step_param` gets them one by one."""
    found = functional_optim_map.get(optim_cls)
    if found is None:
        raise UsageError(f"Optimizer {optim_cls} does not have a functional counterpart!")
    return found([], *args, **kwargs, _allow_empty_param_list=True)
