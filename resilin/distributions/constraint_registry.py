"""Which transform leads from unconstrained numbers to a constraint: `biject_to` and `transform_to`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilin.distributions import constraints
from resilin.distributions.constraints import Constraint
from resilin.distributions.transforms import (
    AffineTransform,
    CatTransform,
    ComposeTransform,
    CorrCholeskyTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    SigmoidTransform,
    SoftmaxTransform,
    StackTransform,
    StickBreakingTransform,
    Transform,
    identity_transform,
)
from resilin.distributions.utils import is_number

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """Transforms by the class of the constraint that they lead to: `registry(constraint)` gives one."""

    def __init__(self) -> None:
        self._registry: dict[type[Constraint], Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Have `factory(constraint)` make the transform for a class of constraints, or for that of an object.

        Without `factory` it is a decorator. Raises: TypeError for what is no constraint.
        """
        if factory is None:
            return lambda function: self.register(constraint, function)
        kind = type(constraint) if isinstance(constraint, Constraint) else constraint
        if not isinstance(kind, type) or not issubclass(kind, Constraint):
            raise TypeError(f"Expected constraint to be either a Constraint subclass or instance, but got {constraint}")
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        """A transform from unconstrained numbers to `constraint`. NotImplementedError where none is registered."""
        factory = self._registry.get(type(constraint))
        if factory is None:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return factory(constraint)


biject_to = ConstraintRegistry()
transform_to = ConstraintRegistry()


def _both(factory: Factory, *kinds: Any) -> None:
    for registry in (biject_to, transform_to):
        for kind in kinds:
            registry.register(kind, factory)


def _above(constraint: Any) -> Transform:
    return ComposeTransform([ExpTransform(), AffineTransform(constraint.lower_bound, 1)])


def _below(constraint: Any) -> Transform:
    return ComposeTransform([ExpTransform(), AffineTransform(constraint.upper_bound, -1)])


def _between(constraint: Any) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if is_number(low) and is_number(high) and (low, high) == (0, 1):
        return SigmoidTransform()
    return ComposeTransform([SigmoidTransform(), AffineTransform(low, high - low)])


_both(lambda _: identity_transform, constraints.real)
_both(_above, constraints.greater_than, constraints.greater_than_eq)
_both(_below, constraints.less_than)
_both(_between, constraints.interval, constraints.half_open_interval)
_both(lambda _: CorrCholeskyTransform(), constraints.corr_cholesky)
biject_to.register(constraints.simplex, lambda _: StickBreakingTransform())
transform_to.register(constraints.simplex, lambda _: SoftmaxTransform())
transform_to.register(constraints.lower_cholesky, lambda _: LowerCholeskyTransform())
transform_to.register(constraints.positive_definite, lambda _: PositiveDefiniteTransform())
transform_to.register(constraints.positive_semidefinite, lambda _: PositiveDefiniteTransform())


def _of_parts(registry: ConstraintRegistry) -> None:
    registry.register(
        constraints.independent,
        lambda c: IndependentTransform(registry(c.base_constraint), c.reinterpreted_batch_ndims),
    )
    registry.register(constraints.cat, lambda c: CatTransform([registry(p) for p in c.cseq], c.dim, c.lengths))
    registry.register(constraints.stack, lambda c: StackTransform([registry(p) for p in c.cseq], c.dim))


_of_parts(biject_to)
_of_parts(transform_to)
