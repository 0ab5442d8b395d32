"""Mixed precision: forward and backward in a smaller dtype, parameters and gradients kept in their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilin.core import dtype as dtypes
from resilin.ddp.comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from resilin.ddp.grad_bucket import Hook
from resilin.ddp.inputs import changed
from resilin.errors import UsageError
from resilin.nn import Module
from resilin.nn.utils.stateless import functional_call

_HOOKS: Mapping[Any, Hook] = {dtypes.float16: fp16_compress_hook, dtypes.bfloat16: bf16_compress_hook}


@dataclass
class _MixedPrecision:
    """What `DistributedDataParallel(mixed_precision=...)` takes, as in PyTorch. None: nothing is converted.

    param_dtype:   floating parameters and inputs are converted to it for forward and backward. Parameters themselves,
                   their gradients and the optimizer stay as they are.
    reduce_dtype:  gradients are averaged in it (None: in param_dtype); the mean is in the parameter's dtype again.
    buffer_dtype:  floating buffers are converted to it for good, when the module is wrapped.
    """

    param_dtype: dtypes.dtype | None = None
    reduce_dtype: dtypes.dtype | None = None
    buffer_dtype: dtypes.dtype | None = None


class Precision:
    """Runs `module` by `policy`. UsageError for something that is no policy, and dtypes that are not floating."""

    def __init__(self, module: Module, policy: Any) -> None:
        if not isinstance(policy, _MixedPrecision):
            raise UsageError(
                "DistributedDataParallel: mixed_precision: expected a _MixedPrecision(param_dtype, reduce_dtype, "
                f"buffer_dtype), got {policy!r}"
            )
        for name, dtype in vars(policy).items():
            if dtype is not None and not (isinstance(dtype, dtypes.dtype) and dtype.is_floating_point):
                raise UsageError(f"DistributedDataParallel: mixed_precision: {name}={dtype!r} is no floating dtype")
        self._module, self.policy = module, policy
        self._dtype = policy.param_dtype
        if policy.buffer_dtype is not None:
            _convert_buffers(module, policy.buffer_dtype)
        kinds = {param.dtype for param in module.parameters() if param.requires_grad}
        reduced = policy.reduce_dtype or policy.param_dtype
        self.hook = None if reduced is None or kinds == {reduced} else _HOOKS.get(reduced)
        """The hook that averages gradients, where plain averaging is not what is asked for."""
        if reduced is not None and self.hook is None and kinds != {reduced}:
            raise UsageError(
                f"DistributedDataParallel: mixed_precision: gradients of {sorted(map(str, kinds))} cannot be averaged "
                f"in {reduced}: expected reduce_dtype float16, bfloat16 or that of the parameters"
            )

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's forward in `param_dtype`. What it returns is in the dtype in which it was computed."""
        if self._dtype is None:
            return self._module(*args, **kwargs)
        given = {name: _converted(param, self._dtype) for name, param in self._module.named_parameters()}
        return functional_call(self._module, given, _converted(args, self._dtype), _converted(kwargs, self._dtype))


def _convert_buffers(module: Module, dtype: dtypes.dtype) -> None:
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = _converted(buffer, dtype)


def _converted(value: Any, dtype: dtypes.dtype) -> Any:
    """Floating tensors in `dtype`, also those inside of `value`; anything else as it is."""
    return changed(value, lambda part: part.to(dtype) if part.data.is_floating_point() else part)
