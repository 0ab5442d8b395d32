"""Automatic differentiation: the names of torch.autograd."""

from resilin.autograd import graph as graph
from resilin.core.autograd import functional as functional
from resilin.core.autograd.anomaly import detect_anomaly, set_detect_anomaly
from resilin.core.autograd.checkpoint import checkpoint
from resilin.core.autograd.function import Function, once_differentiable
from resilin.core.autograd.grad import backward, grad
from resilin.core.autograd.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
from resilin.core.autograd.gradcheck import gradcheck, gradgradcheck

__all__ = [
    "Function",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "no_grad",
    "once_differentiable",
    "set_detect_anomaly",
    "set_grad_enabled",
]
