"""Arguments of operations with two tensors."""

from __future__ import annotations

from typing import Any

import resilin
from resilin.utils.benchmark.op_fuzzers import parameters
from resilin.utils.benchmark.op_fuzzers.parameters import DIMS, FAIR, POWERS_OF_TWO, POWERS_SHARES
from resilin.utils.benchmark.utils.fuzzer import FuzzedParameter, Fuzzer, ParameterAlias

__all__ = ["BinaryOpFuzzer"]


class BinaryOpFuzzer(Fuzzer):
    """Makes `x`, as UnaryOpFuzzer does, and `y`, of which each size is x's or, once in five times, 1."""

    def __init__(self, seed: int | None, dtype: Any = resilin.float32, cuda: bool = False) -> None:
        super().__init__(
            parameters=[
                parameters.dim("dim"),
                *parameters.sizes(POWERS_OF_TWO[0], POWERS_OF_TWO[-1], POWERS_OF_TWO, POWERS_SHARES),
                [
                    FuzzedParameter(f"y_k{i}", distribution={ParameterAlias(f"k{i}"): 0.8, 1: 0.2}, strict=True)
                    for i in range(DIMS)
                ],
                parameters.steps(["x_step_", "y_step_"]),
                parameters.random_value(),
            ],
            tensors=[
                parameters.tensor("x", "k", "x_step_", "dim", dtype, cuda, **FAIR),
                parameters.tensor("y", "y_k", "x_step_", "dim", dtype, cuda),  # with x's steps, as PyTorch has it
            ],
            seed=seed,
        )
