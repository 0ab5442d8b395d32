"""Automatic differentiation: the names of torch.autograd."""

from typing import TYPE_CHECKING

from resilin.autograd import forward_ad as forward_ad
from resilin.autograd import function as function
from resilin.autograd import grad_mode as grad_mode
from resilin.autograd import graph as graph
from resilin.core.autograd import functional as functional
from resilin.core.autograd.anomaly import detect_anomaly, set_detect_anomaly
from resilin.core.autograd.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    set_checkpoint_early_stop,
)
from resilin.core.autograd.function import Function, FunctionCtx, once_differentiable
from resilin.core.autograd.grad import backward, grad
from resilin.core.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_multithreading_enabled,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)
from resilin.core.autograd.gradcheck import gradcheck, gradgradcheck
from resilin.core.autograd.tape import CheckpointError
from resilin.core.autograd.variable import Variable

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.autograd import anomaly_mode as anomaly_mode
    from resilin.autograd import profiler as profiler
    from resilin.autograd import profiler_util as profiler_util
    from resilin.autograd import variable as variable

__all__ = [
    "CheckpointError",
    "Function",
    "FunctionCtx",
    "Variable",
    "backward",
    "checkpoint",
    "checkpoint_sequential",
    "detect_anomaly",
    "enable_grad",
    "forward_ad",
    "function",
    "functional",
    "grad",
    "grad_mode",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_multithreading_enabled",
    "no_grad",
    "once_differentiable",
    "set_checkpoint_early_stop",
    "set_detect_anomaly",
    "set_grad_enabled",
    "set_multithreading_enabled",
]
