"""Parameters that the fuzzers of operations share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from resilin.utils.benchmark.utils.fuzzer import FuzzedParameter, FuzzedTensor, ParameterAlias

DIMS = 3  # at most
STEPS: dict[Any, float] = {1: 0.8, 2: 0.06, 4: 0.06, 8: 0.04, 16: 0.04}  # mostly none


def dim(name: str) -> FuzzedParameter:
    """How many dimensions there are."""
    return FuzzedParameter(name, distribution={1: 0.3, 2: 0.4, 3: 0.3}, strict=True)


def sizes(least: int, most: int, special: Iterable[int], shares: Mapping[str, float]) -> list[list[FuzzedParameter]]:
    """`k0` to `k2`: any size between `least` and `most`, or one of the `special` ones.

    `shares` says how often it is which: the one called "any", or the other one. These are drawn as `k_any_0`, ...
    """
    (name,) = shares.keys() - {"any"}
    chosen = [*special]
    choices = dict.fromkeys(chosen, 1.0 / len(chosen))
    return [
        [FuzzedParameter(f"k_any_{i}", minval=least, maxval=most, distribution="loguniform") for i in range(DIMS)],
        [FuzzedParameter(f"k_{name}_{i}", distribution=choices) for i in range(DIMS)],
        [FuzzedParameter(f"k{i}", distribution=_aliases(shares, i), strict=True) for i in range(DIMS)],
    ]


def _aliases(shares: Mapping[str, float], i: int) -> dict[Any, float]:
    return {ParameterAlias(f"k_{kind}_{i}"): share for kind, share in shares.items()}


def steps(names: Iterable[str]) -> list[FuzzedParameter]:
    """Steps of each dimension, for each name `NAME0` to `NAME2`."""
    return [FuzzedParameter(f"{name}{i}", distribution=STEPS) for i in range(DIMS) for name in names]


def random_value() -> FuzzedParameter:
    """A number for whoever needs more randomness."""
    return FuzzedParameter("random_value", minval=0, maxval=2**32 - 1, distribution="uniform")


def tensor(name: str, size: str, step: str, dim: str, dtype: Any, cuda: bool, **limits: Any) -> FuzzedTensor:
    """A tensor of at most 2 GiB whose sizes are `SIZE0` to `SIZE2`, and steps `STEP0` to `STEP2`."""
    return FuzzedTensor(
        name=name,
        size=tuple(f"{size}{i}" for i in range(DIMS)),
        steps=tuple(f"{step}{i}" for i in range(DIMS)),
        probability_contiguous=0.75,
        max_allocation_bytes=2 << 30,
        dim_parameter=dim,
        dtype=dtype,
        cuda=cuda,
        **limits,
    )


FAIR: dict[str, int] = {"min_elements": 4 << 10, "max_elements": 32 << 20}  # neither all overhead nor all waiting
POWERS_OF_TWO = tuple(1 << exponent for exponent in range(4, 25))  # from 16 to 16 Mi
POWERS_SHARES = {"any": 0.8, "pow2": 0.2}
