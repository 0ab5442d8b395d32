"""Modules as functions: the states of several as one, and batch normalization without state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.ops.shape import stack
from resilin.core.tensor import Tensor
from resilin.nn.modules.module import Module
from resilin.nn.modules.normalization import _BatchNorm


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of modules of one kind, those of equal names stacked along a new first dimension.

    For `vmap` over `functional_call`: an ensemble in one call. The stacked parameters are leaves that require
    gradients as the modules' own do. RuntimeError for no modules, for different kinds, or where some are in training
    mode and some are not.
    """
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({model.training for model in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if len({type(model) for model in models}) > 1:
        kinds = sorted({type(model).__name__ for model in models})
        raise RuntimeError(f"stack_module_state: Expected all models to be of the same class, got {', '.join(kinds)}.")
    parameters = _stacked([dict(model.named_parameters()) for model in models])
    return parameters, _stacked([dict(model.named_buffers()) for model in models])


def _stacked(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    made = {}
    for name, first in states[0].items():
        column = [state[name] for state in states]
        wants = {tensor.requires_grad for tensor in column}
        if len(wants) > 1:
            raise RuntimeError(f"stack_module_state: Expected {name} to have the same requires_grad in all models")
        joined = stack.call([tensor.detach() for tensor in column], 0)
        made[name] = joined.requires_grad_() if first.requires_grad else joined
    return made


def replace_all_batch_norm_modules_(root: Module) -> Module:
    """Let every batch normalization in `root` forget its running statistics, in place, and use the batch's: what
    per-sample gradients need. Gives `root`."""
    for module in root.modules():
        if isinstance(module, _BatchNorm):
            state: Any = module
            state.running_mean = state.running_var = state.num_batches_tracked = None
            state.track_running_stats = False
    return root
