"""Tensors of random shapes and layouts for benchmarks: what is drawn depends on the seed alone.

Shapes, layouts and other parameters come from numpy's RandomState, drawn in the order in which PyTorch draws them: the
same seed gives the same ones. The elements of tensors are resilin's own random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

import resilin
from resilin.core import rng
from resilin.core.ops.random import rand, randint
from resilin.core.tensor import Tensor
from resilin.errors import UsageError

__all__ = ["FuzzedParameter", "FuzzedTensor", "Fuzzer", "ParameterAlias"]

MOST_TRIES = 1000  # for parameters that meet all constraints
TOLERANCE = 1e-5  # of the sum of probabilities

_T = TypeVar("_T")


class ParameterAlias:
    """Stands, as a choice of a FuzzedParameter, for the value that another parameter has got."""

    def __init__(self, alias_to: str) -> None:
        self.alias_to = alias_to

    def __repr__(self) -> str:
        return f"ParameterAlias[alias_to: {self.alias_to}]"


class FuzzedParameter:
    """Draws a number, or one of several choices.

    Args:
        name: what tensors and aliases call it.
        minval, maxval: the least and the greatest number. Not for choices.
        distribution: "uniform" (whole numbers, if both bounds are), "loguniform" (whole numbers, as many between 1 and
            10 as between 10 and 100), or a dictionary of choices and their probabilities, which sum to 1.
        strict: keep what was drawn first while the other parameters are drawn anew until they meet all constraints,
            which otherwise favor some values.

    Raises:
        UsageError (a ValueError): the distribution is unknown or incomplete.
    """

    def __init__(
        self,
        name: str,
        minval: float | None = None,
        maxval: float | None = None,
        distribution: str | dict[Any, float] | None = None,
        strict: bool = False,
    ) -> None:
        self._name, self._minval, self._maxval = name, minval, maxval
        self._distribution = distribution
        self.strict = strict
        where = f"FuzzedParameter {name!r}"
        if isinstance(distribution, dict):
            if minval is not None or maxval is not None:
                raise UsageError(f"{where}: expected no minval or maxval beside choices, got {minval} and {maxval}")
            if any(share < 0 for share in distribution.values()):
                raise UsageError(f"{where}: expected probabilities of at least 0, got {[*distribution.values()]}")
            if abs(sum(distribution.values()) - 1) > TOLERANCE:
                raise UsageError(f"{where}: probabilities sum to {sum(distribution.values())}, expected 1")
        elif distribution not in ("loguniform", "uniform"):
            raise UsageError(f"{where}: expected 'loguniform', 'uniform' or a dictionary, got {distribution!r}")
        elif minval is None or maxval is None:
            raise UsageError(f"{where}: {distribution} needs minval and maxval, got {minval} and {maxval}")
        elif minval > maxval or (distribution == "loguniform" and minval <= 0):
            least = " of more than 0" if distribution == "loguniform" else ""
            raise UsageError(f"{where}: expected a minval{least} and no less as maxval, got {minval} and {maxval}")

    @property
    def name(self) -> str:
        """What tensors and aliases call it."""
        return self._name

    def sample(self, state: np.random.RandomState) -> Any:
        """Draw a value from `state`."""
        if isinstance(self._distribution, dict):
            choices = [*self._distribution]  # drawn by number: numpy would make its own scalars of them
            return choices[state.choice(np.arange(len(choices)), p=tuple(self._distribution.values()))]
        low: Any = self._minval
        high: Any = self._maxval
        if self._distribution == "loguniform":
            drawn = int(2 ** state.uniform(low=np.log2(low), high=np.log2(high)))
            return min(max(drawn, low), high)
        if isinstance(low, int) and isinstance(high, int):
            return int(state.randint(low=low, high=high + 1))
        return state.uniform(low=low, high=high)


class FuzzedTensor:
    """Makes a tensor of parameters' shape and steps.

    Args:
        name: what the Fuzzer calls it.
        size: its sizes: numbers, or names of parameters.
        steps: as many: a tensor `steps` times as large is made, of which each so many-th element is taken.
        probability_contiguous: how often the memory lies in order; else its dimensions are permuted.
        min_elements, max_elements: how many elements it may have; other parameters are drawn anew.
        max_allocation_bytes: how large it may be before steps are taken.
        dim_parameter: the parameter that says how many of `size` and `steps` count.
        roll_parameter: ignored, as by PyTorch.
        dtype: its dtype.
        cuda: whether it lies on the GPU.
        tensor_constructor: called with `size`, `dtype` and all parameters by name instead of
            `default_tensor_constructor`; permuting and steps come after it.
    """

    def __init__(
        self,
        name: str,
        size: tuple[str | int, ...],
        steps: tuple[str | int, ...] | None = None,
        probability_contiguous: float = 0.5,
        min_elements: int | None = None,
        max_elements: int | None = None,
        max_allocation_bytes: int | None = None,
        dim_parameter: str | None = None,
        roll_parameter: str | None = None,
        dtype: Any = resilin.float32,
        cuda: bool = False,
        tensor_constructor: Callable[..., Tensor] | None = None,
    ) -> None:
        self._name, self._size, self._steps = name, size, steps or ()
        self._probability_contiguous = probability_contiguous
        self._min_elements, self._max_elements = min_elements or 0, max_elements
        self._max_allocation_bytes = max_allocation_bytes
        self._dim_parameter = dim_parameter
        self._dtype, self._cuda = dtype, cuda
        self._constructor = tensor_constructor or self.default_tensor_constructor

    @property
    def name(self) -> str:
        """What the Fuzzer calls it."""
        return self._name

    @staticmethod
    def default_tensor_constructor(size: Sequence[int], dtype: Any, **kwargs: Any) -> Tensor:
        """Return random numbers: between 0 and 1, whole ones of 1 to 126, booleans."""
        if dtype.is_floating_point or dtype.is_complex:
            return rand(size, dtype=dtype)
        low, high = (0, 2) if dtype == resilin.bool else (1, 127)
        return randint(low, high, size, dtype=dtype)

    def satisfies_constraints(self, params: Mapping[str, Any]) -> bool:
        """Return whether the tensor of these parameters is neither too small nor too large."""
        size, steps = self._size_and_steps(params)
        elements = math.prod(size)
        allocation = elements * math.prod(steps) * self._dtype.itemsize
        most_elements = math.inf if self._max_elements is None else self._max_elements
        most_bytes = math.inf if self._max_allocation_bytes is None else self._max_allocation_bytes
        return self._min_elements <= elements <= most_elements and allocation <= most_bytes

    def _make_tensor(self, params: Mapping[str, Any], state: np.random.RandomState) -> tuple[Tensor, dict[str, Any]]:
        """The tensor, and what is special about it."""
        size, steps = self._size_and_steps(params)
        allocated = tuple(length * step for length, step in zip(size, steps, strict=True))
        tensor = self._constructor(size=allocated, dtype=self._dtype, **params)
        if self._cuda:
            tensor = tensor.cuda()
        order = np.arange(len(size))
        if state.rand() > self._probability_contiguous:
            while len(size) > 1 and (order == np.arange(len(size))).all():
                order = state.permutation(len(size))
            tensor = tensor.permute(tuple(order.tolist())).contiguous().permute(tuple(np.argsort(order).tolist()))
        tensor = tensor[tuple(slice(0, length, step) for length, step in zip(allocated, steps, strict=True))]
        return tensor, {
            "numel": tensor.numel(),
            "order": order,
            "steps": steps,
            "is_contiguous": tensor.is_contiguous(),
            "dtype": str(self._dtype),
        }

    def _size_and_steps(self, params: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        dim = len(self._size) if self._dim_parameter is None else params[self._dim_parameter]

        def resolve(values: Iterable[str | int]) -> tuple[int, ...]:
            found = [params[value] if isinstance(value, str) else value for value in values]
            return tuple([*found, *[1] * dim][:dim])

        return resolve(self._size), resolve(self._steps)


class Fuzzer:
    """Draws parameters and makes tensors of them, again and again.

    Args:
        parameters, tensors: what is drawn, or lists of it.
        constraints: functions of the dictionary of parameters; where one says False, parameters are drawn anew.
        seed: decides everything, also the tensors' elements (by `manual_seed`); None draws one.

    Raises:
        UsageError (a ValueError): a parameter and a tensor have one name.
    """

    def __init__(
        self,
        parameters: list[FuzzedParameter | list[FuzzedParameter]],
        tensors: list[FuzzedTensor | list[FuzzedTensor]],
        constraints: list[Callable[[dict[str, Any]], bool]] | None = None,
        seed: int | None = None,
    ) -> None:
        self._seed = int(np.random.RandomState().randint(0, 2**32 - 1, dtype=np.int64)) if seed is None else seed
        self._parameters = _flat(parameters, FuzzedParameter)
        self._tensors = _flat(tensors, FuzzedTensor)
        self._constraints = [*(constraints or ()), *(tensor.satisfies_constraints for tensor in self._tensors)]
        self._rejections = self._generated = 0
        both = {one.name for one in self._parameters} & {one.name for one in self._tensors}
        if both:
            raise UsageError(f"Fuzzer: names of parameters and of tensors, expected to be different: {sorted(both)}")

    def take(self, n: int) -> Iterator[tuple[dict[str, Tensor], dict[str, dict[str, Any]], dict[str, Any]]]:
        """Yield `n` times the tensors, what is special about each, and the parameters, by name. Each call starts anew.

        UsageError, a ValueError, where no parameters are found that meet all constraints.
        """
        state = np.random.RandomState(self._seed)
        rng.manual_seed(int(state.randint(low=0, high=2**63, dtype=np.int64)))
        for _ in range(n):
            params = self._generate(state)
            made = {tensor.name: tensor._make_tensor(params, state) for tensor in self._tensors}
            tensors = {name: tensor for name, (tensor, _) in made.items()}
            yield tensors, {name: properties for name, (_, properties) in made.items()}, params

    @property
    def rejection_rate(self) -> float:
        """The share of drawn parameters that did not meet the constraints."""
        return self._rejections / self._generated if self._generated else 0.0

    def _generate(self, state: np.random.RandomState) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for _ in range(MOST_TRIES):
            drawn: dict[str, Any] = {}
            for parameter in self._parameters:
                name = parameter.name
                drawn[name] = kept[name] if name in kept else parameter.sample(state)
                if parameter.strict:
                    kept[name] = drawn[name]
            params = {name: _resolved(name, drawn) for name in drawn}
            self._generated += 1
            if all(constraint(params) for constraint in self._constraints):
                return params
            self._rejections += 1
        raise UsageError(f"Fuzzer: none of {MOST_TRIES} sets of parameters met all constraints: widen them")


def _flat(values: Iterable[_T | Iterable[_T]], kind: type[_T]) -> list[_T]:
    """The values, with those that stand in lists."""
    found: list[_T] = []
    for value in values:
        if isinstance(value, kind):
            found.append(value)
        else:
            found.extend(cast("Iterable[_T]", value))
    return found


def _resolved(name: str, drawn: Mapping[str, Any]) -> Any:
    """The value of a parameter, behind all aliases."""
    value, path = drawn[name], [name]
    while isinstance(value, ParameterAlias):
        to = value.alias_to
        if to in path or to not in drawn:
            wrong = "a cycle" if to in path else "no such parameter"
            raise UsageError(
                f"ParameterAlias: {' -> '.join([*path, to])}: {wrong}, expected to end at a parameter's value"
            )
        path.append(to)
        value = drawn[to]
    return value
