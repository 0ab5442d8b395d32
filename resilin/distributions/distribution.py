"""`Distribution`: what every distribution has, and how parameters and values are checked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.constraints import Constraint
from resilin.distributions.utils import lazy_property

__all__ = ["Distribution"]

Shape = Sequence[int]


class Distribution:
    """A probability distribution: a batch of independent ones of `batch_shape`, whose samples have `event_shape`.

    validate_args:  whether parameters and values are checked against constraints; None: as
                    `set_default_validate_args` says, which is True unless Python runs with -O.
    """

    has_rsample: Any = False
    """Whether `rsample` gives samples through which gradients reach the parameters."""
    has_enumerate_support: Any = False
    """Whether `enumerate_support` lists all values."""
    arg_constraints: Any
    """Constraints of the parameters, by name."""
    support: Any
    """The constraint that every value satisfies."""
    _validate_args: bool = __debug__

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Check parameters and values of distributions that are made from now on, or do not. ValueError for no bool."""
        if value not in (True, False):
            raise ValueError(f"set_default_validate_args: expected True or False, got {value!r}")
        Distribution._validate_args = value

    def __init__(self, batch_shape: Shape = (), event_shape: Shape = (), validate_args: bool | None = None) -> None:
        self._batch_shape = Size(batch_shape)
        self._event_shape = Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_parameters()
        super().__init__()

    def _check_parameters(self) -> None:
        """Raises ValueError for a parameter that does not satisfy its constraint."""
        for name, constraint in self._own_constraints().items():
            if constraints.is_dependent(constraint):
                continue
            if name not in self.__dict__ and isinstance(getattr(type(self), name, None), lazy_property):
                continue  # made of another parameter, which is checked
            value = getattr(self, name)
            if not bool(constraint.check(value).all()):
                raise ValueError(
                    f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of "
                    f"distribution {self!r} to satisfy the constraint {constraint!r}, but found invalid "
                    f"values:\n{value}"
                )

    def _own_constraints(self) -> Mapping[str, Constraint]:
        try:
            found: Mapping[str, Constraint] = self.arg_constraints
        except (AttributeError, NotImplementedError):
            warnings.warn(
                f"{type(self)} does not define `arg_constraints`. Please set `arg_constraints = {{}}` or initialize "
                "the distribution with `validate_args=False` to turn off validation.",
                stacklevel=4,
            )
            return {}
        return found

    @property
    def batch_shape(self) -> Size:
        """The shape of the batch of distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one sample of one distribution."""
        return self._event_shape

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded to `batch_shape`; parameters are views.

        `_instance` is for subclasses: the object to fill.
        """
        self._lacks("expand")

    def _lacks(self, name: str) -> NoReturn:
        raise NotImplementedError(f"{type(self)} does not implement {name}")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        self._lacks("mean")

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        self._lacks("mode")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample of `sample_shape` + `batch_shape` + `event_shape`, outside of the graph."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample as a function of the parameters, so that gradients reach them."""
        self._lacks("rsample")

    def sample_n(self, n: int) -> Tensor:
        """Draw `sample((n,))`; deprecated."""
        warnings.warn("`sample_n(n)` will be deprecated. Use `sample((n,))` instead.", FutureWarning, stacklevel=2)
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, at `value`."""
        self._lacks("log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        self._lacks("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        self._lacks("icdf")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a discrete distribution along dimension 0, those of a batch in lock-step.

        `expand=False` leaves the dimensions of the batch at 1.
        """
        self._lacks("enumerate_support")

    def entropy(self) -> Tensor:
        """The entropy in nats, of `batch_shape`."""
        self._lacks("entropy")

    def perplexity(self) -> Tensor:
        """exp of the entropy."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Shape = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _validate_sample(self, value: Any) -> None:
        """Raises ValueError for a value that the distribution cannot have."""
        if not isinstance(value, Tensor):
            raise ValueError(f"The value argument to log_prob must be a Tensor, got {type(value).__name__}")
        own = (*self._batch_shape, *self._event_shape)
        if tuple(value.shape[value.dim() - len(self._event_shape) :]) != tuple(self._event_shape):
            raise ValueError(
                f"The right-most size of value must match event_shape: {value.shape} vs {self._event_shape}."
            )
        for got, expected in zip(reversed(value.shape), reversed(own), strict=False):
            if 1 not in (got, expected) and got != expected:
                raise ValueError(
                    f"Value is not broadcastable with batch_shape+event_shape: {value.shape} vs {Size(own)}."
                )
        support = self._own_support()
        if support is not None and not bool(support.check(value).all()):
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be within the "
                f"support ({support!r}) of the distribution {self!r}, but found invalid values:\n{value}"
            )

    def _own_support(self) -> Constraint | None:
        try:
            found: Constraint = self.support
        except (AttributeError, NotImplementedError):
            warnings.warn(
                f"{type(self)} does not define `support` to enable sample validation. Please initialize the "
                "distribution with `validate_args=False` to turn off validation.",
                stacklevel=4,
            )
            return None
        return found

    def _checked(self, value: Tensor) -> Tensor:
        """`value`, having been checked where that is wanted."""
        if self._validate_args:
            self._validate_sample(value)
        return value

    def _get_checked_instance(self, cls: Any, _instance: Any = None) -> Any:
        if _instance is None and type(self).__init__ is not cls.__init__:
            raise NotImplementedError(
                f"Subclass {type(self).__name__} of {cls.__name__} that defines a custom __init__ method must also "
                "define a custom .expand() method."
            )
        return self.__new__(type(self)) if _instance is None else _instance

    def _filled(self, new: Any, batch_shape: Shape, *names: str, **event_dims: int) -> Any:
        """Give `new` this object's parameters expanded, those of `event_dims` with so many dimensions of their own."""
        for name, dims in {**dict.fromkeys(names, 0), **event_dims}.items():
            if name in self.__dict__:
                value = self.__dict__[name]
                new.__dict__[name] = value.expand((*batch_shape, *value.shape[value.dim() - dims :]))
        Distribution.__init__(new, batch_shape, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _new_expanded(
        self, cls: type[Self] | Any, batch_shape: Shape, _instance: Any, *names: str, **event_dims: int
    ) -> Any:
        return self._filled(self._get_checked_instance(cls, _instance), batch_shape, *names, **event_dims)

    def __repr__(self) -> str:
        shown = []
        for name in self._own_constraints():
            value = self.__dict__.get(name)
            if value is not None:
                shown.append(f"{name}: {value if value.numel() == 1 else value.size()}")
        return f"{type(self).__name__}({', '.join(shown)})"
