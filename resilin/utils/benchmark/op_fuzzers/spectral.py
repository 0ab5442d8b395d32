"""Arguments of Fourier transforms."""

from __future__ import annotations

from itertools import product
from typing import Any

import resilin
from resilin.utils.benchmark.op_fuzzers import parameters
from resilin.utils.benchmark.op_fuzzers.parameters import FAIR
from resilin.utils.benchmark.utils.fuzzer import Fuzzer

__all__ = ["SpectralOpFuzzer"]

MIN_DIM_SIZE = 16
MAX_DIM_SIZE = 16 * 1024
# Products of 2, 3 and 5 alone, which transforms are fastest with.
REGULAR_SIZES = sorted(
    size
    for size in (2**i * 3**j * 5**k for i, j, k in product(range(15), range(9), range(7)))
    if MIN_DIM_SIZE < size <= MAX_DIM_SIZE
)


class SpectralOpFuzzer(Fuzzer):
    """Makes `x`: of 1 to 3 dimensions, whose sizes are regular with the given probability, else any."""

    def __init__(
        self,
        *,
        seed: int | None,
        dtype: Any = resilin.float64,
        cuda: bool = False,
        probability_regular: float = 1.0,
    ) -> None:
        shares = {"regular": probability_regular, "any": 1 - probability_regular}  # the order decides what a seed gives
        super().__init__(
            parameters=[
                parameters.dim("ndim"),
                *parameters.sizes(MIN_DIM_SIZE, MAX_DIM_SIZE, REGULAR_SIZES, shares),
                parameters.steps(["step_"]),
            ],
            tensors=[parameters.tensor("x", "k", "step_", "ndim", dtype, cuda, **FAIR)],
            seed=seed,
        )
