"""Arguments of operations with one tensor."""

from __future__ import annotations

from typing import Any

import resilin
from resilin.utils.benchmark.op_fuzzers import parameters
from resilin.utils.benchmark.op_fuzzers.parameters import FAIR, POWERS_OF_TWO, POWERS_SHARES
from resilin.utils.benchmark.utils.fuzzer import Fuzzer

__all__ = ["UnaryOpFuzzer"]


class UnaryOpFuzzer(Fuzzer):
    """Makes `x`: of 1 to 3 dimensions, sizes of which a fifth are powers of two, often with steps or permuted."""

    def __init__(self, seed: int | None, dtype: Any = resilin.float32, cuda: bool = False) -> None:
        super().__init__(
            parameters=[
                parameters.dim("dim"),
                *parameters.sizes(POWERS_OF_TWO[0], POWERS_OF_TWO[-1], POWERS_OF_TWO, POWERS_SHARES),
                parameters.steps(["x_step_"]),
                parameters.random_value(),
            ],
            tensors=[parameters.tensor("x", "k", "x_step_", "dim", dtype, cuda, **FAIR)],
            seed=seed,
        )
