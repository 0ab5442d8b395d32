"""Constraints: the regions in which parameters and values lie. `check` says which events of a tensor are inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import joining
from resilin.core.api.mathematics import arithmetic
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.linalg import cholesky_ex, eigvalsh

__all__ = [
    "Constraint",
    "MixtureSameFamilyConstraint",
    "boolean",
    "cat",
    "corr_cholesky",
    "dependent",
    "dependent_property",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer_interval",
    "interval",
    "is_dependent",
    "less_than",
    "lower_cholesky",
    "lower_triangular",
    "multinomial",
    "nonnegative",
    "nonnegative_integer",
    "one_hot",
    "positive",
    "positive_definite",
    "positive_integer",
    "positive_semidefinite",
    "real",
    "real_vector",
    "simplex",
    "square",
    "stack",
    "symmetric",
    "unit_interval",
]

_SIMPLEX_TOLERANCE = 1e-6  # of a sum of probabilities, and of the two halves of a symmetric matrix
_ROW_TOLERANCE = 10  # steps of the dtype, for each element of a row of unit length


class Constraint:
    """A region of values."""

    is_discrete: Any = False
    """Whether the region consists of separate points."""
    event_dim: Any = 0
    """How many of the last dimensions make one event."""

    def check(self, value: Tensor) -> Tensor:
        """Whether each event of `value` lies inside: booleans without the dimensions of an event."""
        raise NotImplementedError(f"{type(self).__name__} does not implement check")

    def __repr__(self) -> str:
        return f"{type(self).__name__[1:]}()"


class _Bounded(Constraint):
    """A constraint whose text shows its bounds."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.__dict__.items())
        return f"{type(self).__name__[1:]}({shown})"


class _Dependent(Constraint):
    """Depends on other variables, and cannot be checked by itself."""

    def __init__(self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented) -> None:
        self._is_discrete = is_discrete
        self._event_dim = event_dim

    @property
    def is_discrete(self) -> bool:
        """Whether the region consists of separate points. NotImplementedError where that was not said."""
        return bool(self._said("is_discrete", self._is_discrete))

    @property
    def event_dim(self) -> int:
        """How many of the last dimensions make one event. NotImplementedError where that was not said."""
        return int(self._said("event_dim", self._event_dim))

    @staticmethod
    def _said(name: str, value: Any) -> Any:
        if value is NotImplemented:
            raise NotImplementedError(f".{name} cannot be determined statically")
        return value

    def __call__(self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented) -> _Dependent:
        return _Dependent(
            is_discrete=self._is_discrete if is_discrete is NotImplemented else is_discrete,
            event_dim=self._event_dim if event_dim is NotImplemented else event_dim,
        )

    def check(self, value: Tensor) -> Tensor:
        """Cannot be said: ValueError."""
        raise ValueError("Cannot determine validity of dependent constraint")


def is_dependent(constraint: Any) -> bool:
    """Whether a constraint depends on other variables, so that it cannot be checked by itself."""
    return isinstance(constraint, _Dependent)


class _DependentProperty(property, _Dependent):
    """A property of an object that is a dependent constraint when it is asked of the class."""

    def __init__(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        is_discrete: Any = NotImplemented,
        event_dim: Any = NotImplemented,
    ) -> None:
        super().__init__(fn)
        self._is_discrete = is_discrete
        self._event_dim = event_dim

    def __call__(self, fn: Callable[..., Any]) -> _DependentProperty:  # type: ignore[override]
        return _DependentProperty(fn, is_discrete=self._is_discrete, event_dim=self._event_dim)


class _IndependentConstraint(Constraint):
    """Holds for an event when `base_constraint` holds for all of its parts."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        _expect(base_constraint)
        assert isinstance(reinterpreted_batch_ndims, int), (
            f"reinterpreted_batch_ndims must be an int, got {type(reinterpreted_batch_ndims).__name__}"
        )
        assert reinterpreted_batch_ndims >= 0, (
            f"reinterpreted_batch_ndims must be >= 0, got {reinterpreted_batch_ndims}"
        )
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    @property
    def is_discrete(self) -> bool:
        """That of the base constraint."""
        return bool(self.base_constraint.is_discrete)

    @property
    def event_dim(self) -> int:
        """That of the base constraint, and the dimensions that were reinterpreted."""
        return int(self.base_constraint.event_dim) + self.reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        """Whether all parts of each event lie inside."""
        result = self.base_constraint.check(value)
        if result.dim() < self.reinterpreted_batch_ndims:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        return _all_of(result, result.dim() - self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"{type(self).__name__[1:]}({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """Holds for a value of a mixture when it holds for each component's distribution."""

    def __init__(self, base_constraint: Constraint) -> None:
        _expect(base_constraint)
        self.base_constraint = base_constraint

    @property
    def is_discrete(self) -> bool:
        """That of the components."""
        return bool(self.base_constraint.is_discrete)

    @property
    def event_dim(self) -> int:
        """That of the components."""
        return int(self.base_constraint.event_dim)

    def check(self, value: Tensor) -> Tensor:
        """Whether each event lies inside for all components."""
        if value.dim() < self.event_dim:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        result = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        return _all_of(result, value.dim() - self.event_dim)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_constraint!r})"


def _expect(constraint: Any) -> None:
    assert isinstance(constraint, Constraint), f"base_constraint must be a Constraint, got {type(constraint).__name__}"


def _all_of(result: Tensor, kept: int) -> Tensor:
    return result.reshape((*result.shape[:kept], -1)).all(-1)


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _IntegerInterval(_Bounded):
    is_discrete = True

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & (value >= self.lower_bound) & (value <= self.upper_bound)


class _IntegerGreaterThan(_Bounded):
    is_discrete = True

    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & (value >= self.lower_bound)


class _Real(Constraint):
    def check(self, value: Tensor) -> Tensor:
        return value == value  # not of NaN


class _GreaterThan(_Bounded):
    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return value > self.lower_bound


class _GreaterThanEq(_Bounded):
    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return value >= self.lower_bound


class _LessThan(_Bounded):
    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return value < self.upper_bound


class _Interval(_Bounded):
    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value >= self.lower_bound) & (value <= self.upper_bound)


class _HalfOpenInterval(_Interval):
    def check(self, value: Tensor) -> Tensor:
        return (value >= self.lower_bound) & (value < self.upper_bound)


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < _SIMPLEX_TOLERANCE)


class _Multinomial(_Bounded):
    """Counts whose sum is at most the number of trials."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return _all_of(value.tril() == value, value.dim() - 2)


class _LowerCholesky(_LowerTriangular):
    def check(self, value: Tensor) -> Tensor:
        return super().check(value) & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class _CorrCholesky(_LowerCholesky):
    """Of a correlation matrix: rows have unit length."""

    def check(self, value: Tensor) -> Tensor:
        tolerance = dtypes.finfo(value.dtype).eps * value.size(-1) * _ROW_TOLERANCE
        lengths = value.detach().square().sum(-1).sqrt()
        return super().check(value) & ((lengths - 1.0).abs() <= tolerance).all(-1)


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        is_square = value.shape[-2] == value.shape[-1]
        return creation.full(tuple(value.shape[:-2]), is_square, dtype=dtypes.bool_, device=value.device)


class _Symmetric(_Square):
    def check(self, value: Tensor) -> Tensor:
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return arithmetic.isclose(value, value.mT, atol=_SIMPLEX_TOLERANCE).all(-2).all(-1)


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        return eigvalsh(value).ge(0).all(-1) if bool(symmetric.all()) else symmetric


class _PositiveDefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        return cholesky_ex(value).info == 0 if bool(symmetric.all()) else symmetric


class _Several(Constraint):
    """One constraint for each part along a dimension."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        assert all(isinstance(c, Constraint) for c in cseq), "All elements of cseq must be Constraint instances"
        self.cseq = list(cseq)
        self.dim = dim

    @property
    def is_discrete(self) -> bool:
        """Whether any part is."""
        return any(c.is_discrete for c in self.cseq)

    def _check_dim(self, value: Tensor) -> None:
        assert -value.dim() <= self.dim < value.dim(), (
            f"dim {self.dim} out of range for value with {value.dim()} dimensions"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__[1:]}({self.cseq!r}, dim={self.dim})"


class _Cat(_Several):
    """Parts of `lengths` along a dimension, as `cat` joins them."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        assert len(self.lengths) == len(self.cseq), f"lengths ({len(self.lengths)}) must match cseq ({len(self.cseq)})"

    @property
    def event_dim(self) -> int:
        """The largest of the parts."""
        return max(c.event_dim for c in self.cseq)

    def check(self, value: Tensor) -> Tensor:
        """Whether each event of each part lies inside."""
        self._check_dim(value)
        checks, start = [], 0
        for constraint, length in zip(self.cseq, self.lengths, strict=True):
            checks.append(constraint.check(value.narrow(self.dim, start, length)))
            start += length
        return joining.cat(checks, self.dim)


class _Stack(_Several):
    """Parts along a dimension, as `stack` joins them."""

    @property
    def event_dim(self) -> int:
        """The largest of the parts, and the stack's own dimension where it belongs to an event."""
        dim: int = max(c.event_dim for c in self.cseq)
        return dim + 1 if self.dim + dim < 0 else dim

    def check(self, value: Tensor) -> Tensor:
        """Whether each event of each part lies inside."""
        self._check_dim(value)
        parts = [value.select(self.dim, i) for i in range(value.size(self.dim))]
        return joining.stack([c.check(part) for part, c in zip(parts, self.cseq, strict=False)], self.dim)


boolean = _Boolean()
cat = _Cat
corr_cholesky = _CorrCholesky()
dependent = _Dependent()
dependent_property = _DependentProperty
greater_than = _GreaterThan
greater_than_eq = _GreaterThanEq
half_open_interval = _HalfOpenInterval
independent = _IndependentConstraint
integer_interval = _IntegerInterval
interval = _Interval
less_than = _LessThan
lower_cholesky = _LowerCholesky()
lower_triangular = _LowerTriangular()
multinomial = _Multinomial
nonnegative = _GreaterThanEq(0.0)
nonnegative_integer = _IntegerGreaterThan(0)
one_hot = _OneHot()
positive = _GreaterThan(0.0)
positive_definite = _PositiveDefinite()
positive_integer = _IntegerGreaterThan(1)
positive_semidefinite = _PositiveSemidefinite()
real = _Real()
real_vector = independent(real, 1)
simplex = _Simplex()
square = _Square()
stack = _Stack
symmetric = _Symmetric()
unit_interval = _Interval(0.0, 1.0)
