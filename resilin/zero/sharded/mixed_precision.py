"""Options of `zero.shard` that are more than a number."""

from __future__ import annotations

from dataclasses import dataclass, fields

from resilin.core.dtype import dtype
from resilin.errors import UsageTypeError


@dataclass(frozen=True, kw_only=True)
class MixedPrecisionPolicy:
    """In which dtypes a sharded module computes; pieces, gradients of pieces and the optimizer's state keep their own.

    Names of PyTorch's policy for FSDP.
    """

    param_dtype: dtype | None = None
    """Parameters are gathered in it, and forward and backward compute with it. None: as the module is."""
    reduce_dtype: dtype | None = None
    """Gradients are summed in it. None: param_dtype. 16-bit sums are made in float32 and rounded once."""
    output_dtype: dtype | None = None
    """Floating point tensors that the module returns are cast to it. None: they are left."""
    cast_forward_inputs: bool = True
    """Whether floating point tensors given to the module are cast to param_dtype."""

    def __post_init__(self) -> None:
        for one in fields(self)[:3]:
            value = getattr(self, one.name)
            if value is not None and not (isinstance(value, dtype) and value.is_floating_point):
                raise UsageTypeError(f"MixedPrecisionPolicy: {one.name} must be a floating point dtype, got {value!r}")
