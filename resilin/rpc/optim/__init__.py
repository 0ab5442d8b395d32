"""Step parameters at the workers where they lie, with torch.distributed.optim's names; docs/rpc.md."""

from resilin.rpc.optim.functional import (
    _FunctionalAdadelta,
    _FunctionalAdagrad,
    _FunctionalAdam,
    _FunctionalAdamax,
    _FunctionalAdamW,
    _FunctionalASGD,
    _FunctionalLion,
    _FunctionalNAdam,
    _FunctionalRAdam,
    _FunctionalRMSprop,
    _FunctionalRprop,
    _FunctionalSGD,
)
from resilin.rpc.optim.optimizer import DistributedOptimizer
from resilin.rpc.optim.utils import as_functional_optim

__all__ = [
    "DistributedOptimizer",
    "_FunctionalASGD",
    "_FunctionalAdadelta",
    "_FunctionalAdagrad",
    "_FunctionalAdam",
    "_FunctionalAdamW",
    "_FunctionalAdamax",
    "_FunctionalLion",
    "_FunctionalNAdam",
    "_FunctionalRAdam",
    "_FunctionalRMSprop",
    "_FunctionalRprop",
    "_FunctionalSGD",
    "as_functional_optim",
]
