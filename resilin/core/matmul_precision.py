"""How exactly products of float32 matrices are computed on devices that can do it faster and less exactly."""

from __future__ import annotations

PRECISIONS = ("highest", "high", "medium")


class MatmulPrecision:
    """What `set_float32_matmul_precision` chose. `highest`: float32 throughout; else CUDA rounds factors to TF32."""

    def __init__(self) -> None:
        self.chosen = "highest"

    @property
    def tf32(self) -> bool:
        """Whether factors may be rounded to TF32's ten bits; sums stay float32."""
        return self.chosen != "highest"


matmul_precision = MatmulPrecision()
