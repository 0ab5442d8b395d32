"""Hooks by name: `register_ddp_comm_hook(DDPCommHookType.POWER_SGD, model, process_group)`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, member
from functools import partial
from typing import Any

from resilin.ddp.comm_hooks import debugging_hooks, default_hooks, quantization_hooks
from resilin.ddp.comm_hooks.exchange import Group
from resilin.ddp.comm_hooks.onebit_hook import OneBitState, onebit_hook
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook, powerSGD_hook
from resilin.ddp.comm_hooks.topk_hook import TopKState, topk_hook
from resilin.ddp.grad_bucket import Hook
from resilin.errors import UsageError, UsageTypeError


def _plain(state: Any) -> Any:
    """The state of a hook that remembers nothing is its process group."""
    return state


def _register(hook: Hook, make_state: Callable[[Group], Any], *, model: Any, state: Group = None) -> None:
    model.register_comm_hook(make_state(state), hook)


def _entry(hook: Hook, make_state: Callable[[Any], Any] = _plain) -> Any:
    return member(partial(_register, hook, make_state))


class DDPCommHookType(Enum):
    """The hooks that need no more than a process group. `.value(model=model, state=process_group)` registers one.

    PyTorch's members, and TOP_K and ONE_BIT. Those with a state of their own are made with its defaults.
    """

    ALLREDUCE = _entry(default_hooks.allreduce_hook)
    FP16_COMPRESS = _entry(default_hooks.fp16_compress_hook)
    BF16_COMPRESS = _entry(default_hooks.bf16_compress_hook)
    QUANTIZE_PER_TENSOR = _entry(quantization_hooks.quantization_pertensor_hook)
    QUANTIZE_PER_CHANNEL = _entry(quantization_hooks.quantization_perchannel_hook)
    POWER_SGD = _entry(powerSGD_hook, PowerSGDState)
    POWER_SGD_RANK2 = _entry(powerSGD_hook, partial(PowerSGDState, matrix_approximation_rank=2))
    BATCHED_POWER_SGD = _entry(batched_powerSGD_hook, PowerSGDState)
    BATCHED_POWER_SGD_RANK2 = _entry(batched_powerSGD_hook, partial(PowerSGDState, matrix_approximation_rank=2))
    TOP_K = _entry(topk_hook, TopKState)
    ONE_BIT = _entry(onebit_hook, OneBitState)
    NOOP = _entry(debugging_hooks.noop_hook)


def register_ddp_comm_hook(comm_hook_type: DDPCommHookType, model: Any, state: Group = None) -> None:
    """Register the hook `comm_hook_type` with the DistributedDataParallel `model`. `state`: a process group or None."""
    if not isinstance(comm_hook_type, DDPCommHookType):
        raise UsageError(f"register_ddp_comm_hook: expected a DDPCommHookType, got {comm_hook_type!r}")
    if not callable(getattr(model, "register_comm_hook", None)):
        raise UsageTypeError(
            f"register_ddp_comm_hook: model must be a DistributedDataParallel, got {type(model).__name__}"
        )
    comm_hook_type.value(model=model, state=state)
