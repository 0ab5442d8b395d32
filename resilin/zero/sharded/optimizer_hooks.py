"""What optimizers must know of pieces, and sharded modules of optimizers' steps.

Hooks around every optimizer's step find the pieces among its parameters: the optimizer is checked before it, and the
modules are told after it that their parameters have changed.
"""

from __future__ import annotations

import weakref
from typing import Any

from resilin.errors import UsageError
from resilin.optim import Optimizer
from resilin.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from resilin.zero import supported_optimizers
from resilin.zero.sharded import unsharded_proxy
from resilin.zero.sharded.module import ShardedModule
from resilin.zero.sharded.unit import ShardedParameter, Unit

_modules: weakref.WeakValueDictionary[int, ShardedModule] = weakref.WeakValueDictionary()  # by id of a unit


def watch(module: ShardedModule) -> None:
    """Tell `module` of steps that change its pieces."""
    for unit in module.units:
        _modules[id(unit)] = module


def _units(optimizer: Optimizer) -> list[Unit]:
    found: dict[int, Unit] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            if isinstance(param, ShardedParameter):
                unit = param.unit()
                if unit is not None:
                    found[id(unit)] = unit
    return list(found.values())


def _before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not _modules:
        return
    name = type(optimizer).__name__
    for group in optimizer.param_groups:
        for param in group["params"]:
            if unsharded_proxy.is_away(param):
                raise UsageError(
                    f"{name}.step: a parameter of shape {list(param.shape)} is divided among the ranks by zero.shard; "
                    "make the optimizer of what shard() returned: model.parameters(), not the module's own"
                )
            if isinstance(param, ShardedParameter) and not supported_optimizers.is_elementwise(type(optimizer)):
                raise UsageError(
                    f"{name}.step: a piece of a parameter cannot be updated alone unless the update is elementwise, "
                    f"and of {name} that is not known. Use SGD, AdamW, Lion, ..., set elementwise = True on a class of "
                    "your own if that is so, or train with ZeroRedundancyOptimizer, which keeps tensors whole"
                )

    for module in _of(optimizer):
        module.check_complete(f"{name}.step")
        module.life.updating(optimizer)
        module.stepping(optimizer)


def _of(optimizer: Optimizer) -> list[ShardedModule]:
    found = {id(module): module for unit in _units(optimizer) if (module := _modules.get(id(unit))) is not None}
    return list(found.values())


def _after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for module in _of(optimizer) if _modules else ():
        module.stepped(optimizer)
        module.life.updated(optimizer)


register_optimizer_step_pre_hook(_before)
register_optimizer_step_post_hook(_after)
