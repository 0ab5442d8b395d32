"""How exactly products of float32 matrices are computed: what programs allow. One value, under PyTorch's three names.

`backends.cuda.matmul.allow_tf32` is whether it is below "highest". It says what is allowed; a device's products may be
as exact as they like.
"""

from __future__ import annotations

PRECISIONS = ("highest", "high", "medium")
_kept = [PRECISIONS[0]]


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was given last; "highest" at first."""
    return _kept[0]


def set_float32_matmul_precision(precision: str) -> None:
    """Allow products of float32 matrices in TF32 or less ("high", "medium") on devices, or not ("highest")."""
    if precision not in PRECISIONS:
        raise ValueError(f"set_float32_matmul_precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    _kept[0] = precision


def allows_tf32() -> bool:
    """Whether products of float32 matrices may round their factors to TF32, 10 bits after the point."""
    return _kept[0] != "highest"


def allow_tf32(allowed: bool) -> None:
    """Set the precision to "high", or to "highest"."""
    _kept[0] = "high" if allowed else "highest"
