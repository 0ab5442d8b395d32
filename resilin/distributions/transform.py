"""`Transform`: invertible functions of tensors with the determinants of their Jacobians, and how they are composed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.ops import creation
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.utils import _sum_rightmost, lazy_property

Shape = Sequence[int]


class Transform:
    """A differentiable function `t(x)` with an inverse `t.inv(y)`.

    A subclass has `domain`, `codomain`, `bijective` and `sign` (of the slope, of bijective functions of numbers), and
    `_call`, `_inverse` and `log_abs_det_jacobian`.

    cache_size:  1 keeps the latest x and y, so that the inverse of a y that came from x is that x itself.
    """

    bijective: Any = False
    """Whether the inverse is exact both ways."""
    domain: Any
    """The constraint that x satisfies."""
    codomain: Any
    """The constraint that y satisfies."""

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._inv: Transform | None = None
        self._cached_x_y: tuple[Any, Any] = None, None
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inv": None, "_cached_x_y": (None, None)}

    @property
    def event_dim(self) -> int:
        """How many of the last dimensions make one event. ValueError where x and y differ in that."""
        if self.domain.event_dim == self.codomain.event_dim:
            return int(self.domain.event_dim)
        raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")

    @property
    def inv(self) -> Transform:
        """The inverse; its inverse is this transform."""
        if self._inv is None:
            self._inv = _InverseTransform(self)
        return self._inv

    @property
    def sign(self) -> Any:
        """1 where the function rises, -1 where it falls."""
        raise NotImplementedError(f"{type(self).__name__} has no sign")

    def _arguments(self) -> tuple[Any, ...] | None:
        """What its constructor takes before `cache_size`; None: not known."""
        return () if type(self).__init__ is Transform.__init__ else None

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The same transform with a cache of this size."""
        if self._cache_size == cache_size:
            return self
        arguments = self._arguments()
        if arguments is None:
            raise NotImplementedError(f"{type(self)}.with_cache is not implemented")
        kind: Any = type(self)
        made: Transform = kind(*arguments, cache_size=cache_size)
        return made

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __call__(self, x: Any) -> Any:
        """y of x."""
        if self._cache_size == 0:
            return self._call(x)
        x_old, y_old = self._cached_x_y
        if x is x_old:
            return y_old
        y = self._call(x)
        self._cached_x_y = x, y
        return y

    def _inv_call(self, y: Any) -> Any:
        if self._cache_size == 0:
            return self._inverse(y)
        x_old, y_old = self._cached_x_y
        if y is y_old:
            return x_old
        x = self._inverse(y)
        self._cached_x_y = x, y
        return x

    def _call(self, x: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not implement _call")

    def _inverse(self, y: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not implement _inverse")

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log |det dy/dx| of each event."""
        raise NotImplementedError(f"{type(self).__name__} does not implement log_abs_det_jacobian")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        return shape

    def inverse_shape(self, shape: Shape) -> Any:
        """The shape of x, of that of y."""
        return shape


class _InverseTransform(Transform):
    """The inverse of a transform."""

    _inv: Transform

    def __init__(self, transform: Transform) -> None:
        super().__init__(cache_size=transform._cache_size)
        self._inv = transform

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        return self._inv.codomain

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        return self._inv.domain

    @property
    def bijective(self) -> bool:
        """Whether the inverse is exact both ways."""
        return bool(self._inv.bijective)

    @property
    def sign(self) -> Any:
        """1 where the function rises, -1 where it falls."""
        return self._inv.sign

    @property
    def inv(self) -> Transform:
        """The transform that this one inverts."""
        return self._inv

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The same transform with a cache of this size."""
        return self._inv.with_cache(cache_size).inv

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InverseTransform) and self._inv == other._inv

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inv!r})"

    def __call__(self, x: Any) -> Any:
        """x of y."""
        return self._inv._inv_call(x)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log |det dy/dx| of each event."""
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Shape) -> Any:
        """The shape of x, of that of y."""
        return self._inv.forward_shape(shape)


class ComposeTransform(Transform):
    """Transforms one after the other, the first of `parts` first."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.parts,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        if not self.parts:
            return constraints.real
        event_dim = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            event_dim = max(event_dim + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim)
        return _widened(self.parts[0].domain, event_dim)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        if not self.parts:
            return constraints.real
        event_dim = self.parts[0].domain.event_dim
        for part in self.parts:
            event_dim = max(event_dim + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim)
        return _widened(self.parts[-1].codomain, event_dim)

    @lazy_property
    def bijective(self) -> bool:
        """Whether all parts are."""
        return all(part.bijective for part in self.parts)

    @lazy_property
    def sign(self) -> Any:
        """The product of the parts'."""
        sign: Any = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    @property
    def inv(self) -> Transform:
        """The inverses, the last first."""
        if self._inv is None:
            self._inv = ComposeTransform([part.inv for part in reversed(self.parts)])
            self._inv._inv = self
        return self._inv

    def __call__(self, x: Any) -> Any:
        """y of x."""
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The sum of the parts'."""
        if not self.parts:
            return creation.zeros_like(x)
        between = [x]
        for part in self.parts[:-1]:
            between.append(part(between[-1]))
        between.append(y)
        event_dim = self.domain.event_dim
        total: Any = 0
        for part, before, after in zip(self.parts, between[:-1], between[1:], strict=True):
            own = part.log_abs_det_jacobian(before, after)
            total = total + _sum_rightmost(own, event_dim - part.domain.event_dim)
            event_dim += part.codomain.event_dim - part.domain.event_dim
        return total

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Shape) -> Any:
        """The shape of x, of that of y."""
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __repr__(self) -> str:
        return f"{type(self).__name__}(\n    " + ",\n    ".join(map(repr, self.parts)) + "\n)"


def _widened(constraint: Any, event_dim: int) -> Any:
    more = event_dim - constraint.event_dim
    assert more >= 0, f"event_dim {event_dim} must be >= that of {constraint!r}"
    return constraints.independent(constraint, more) if more else constraint


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """A transform whose events take `reinterpreted_batch_ndims` more dimensions: its determinants are summed there."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    def _arguments(self) -> tuple[Any, ...]:
        return self.base_transform, self.reinterpreted_batch_ndims

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def bijective(self) -> bool:
        """Whether the base transform is."""
        return bool(self.base_transform.bijective)

    @property
    def sign(self) -> Any:
        """That of the base transform."""
        return self.base_transform.sign

    def _call(self, x: Tensor) -> Tensor:
        if x.dim() < self.domain.event_dim:
            raise ValueError("Too few dimensions on input")
        y: Tensor = self.base_transform(x)
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        if y.dim() < self.codomain.event_dim:
            raise ValueError("Too few dimensions on input")
        x: Tensor = self.base_transform.inv(y)
        return x

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """That of the base transform, summed over the dimensions that were reinterpreted."""
        return _sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_transform!r}, {self.reinterpreted_batch_ndims})"

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Shape) -> Any:
        """The shape of x, of that of y."""
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """The last dimensions in another shape of as many elements."""

    bijective = True

    def __init__(self, in_shape: Shape, out_shape: Shape, cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ValueError("in_shape, out_shape have different numbers of elements")
        super().__init__(cache_size=cache_size)

    def _arguments(self) -> tuple[Any, ...]:
        return self.in_shape, self.out_shape

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.independent(constraints.real, len(self.in_shape))

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self._swapped(x.shape, self.in_shape, self.out_shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self._swapped(y.shape, self.out_shape, self.in_shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Zeros."""
        return x.new_zeros(tuple(x.shape[: x.dim() - len(self.in_shape)]))

    @staticmethod
    def _swapped(shape: Shape, before: Size, after: Size) -> Any:
        if len(shape) < len(before):
            raise ValueError("Too few dimensions on input")
        cut = len(shape) - len(before)
        if tuple(shape[cut:]) != tuple(before):
            raise ValueError(f"Shape mismatch: expected {Size(shape[cut:])} but got {before}")
        return Size((*shape[:cut], *after))

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        return self._swapped(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Shape) -> Any:
        """The shape of x, of that of y."""
        return self._swapped(shape, self.out_shape, self.in_shape)
