"""Which optimizers may see a parameter in pieces, which need it whole, and which cannot be divided at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from resilin.core import shard_metadata
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError
from resilin.optim import LBFGS, SGD, Adam, Optimizer
from resilin.optim.elementwise import Elementwise

_FORMULAS = (SGD, Adam, Elementwise)  # an element's update depends on its own gradient and state alone
_STEP = ("step", "_update", "_apply")  # the methods in which a class computes its update
_REFUSED = {
    LBFGS: "its direction is made of dot products over all parameters, so no rank can compute a part of it",
}


def check_class(optimizer_class: Any) -> None:
    """UsageTypeError for what is no class of optimizers, UsageError for one that cannot be divided among ranks."""
    if not isinstance(optimizer_class, type) or not issubclass(optimizer_class, Optimizer):
        got = optimizer_class.__name__ if isinstance(optimizer_class, type) else repr(optimizer_class)
        raise UsageTypeError(
            f"ZeroRedundancyOptimizer: optimizer_class must be a class of resilin.optim, or one derived from "
            f"optim.Optimizer, got {got}"
        )
    for refused, reason in _REFUSED.items():
        if issubclass(optimizer_class, refused):
            raise UsageError(
                f"ZeroRedundancyOptimizer: {optimizer_class.__name__} cannot be divided among ranks: {reason}; use it "
                "directly, or divide another optimizer"
            )


def check_whole(params: Iterable[Tensor], optimizer_class: type[Optimizer]) -> None:
    """UsageError for pieces of a sharded module, which are divided already."""
    why = f"and with it its state; make optim.{optimizer_class.__name__} of model.parameters() instead"
    shard_metadata.refuse("ZeroRedundancyOptimizer", enumerate(params), why)


def is_elementwise(optimizer_class: type[Optimizer]) -> bool:
    """Whether the update of a flat piece of a parameter has the bits that the whole parameter's would have there.

    A class says so by an attribute `elementwise`; without one, those of resilin.optim are known, and classes derived
    from them that change nothing in the update. All others keep parameters whole.
    """
    said = getattr(optimizer_class, "elementwise", None)
    if said is not None:
        return bool(said)
    for known in _FORMULAS:
        if issubclass(optimizer_class, known):
            return all(getattr(optimizer_class, name) is getattr(known, name) for name in _STEP)
    return False
