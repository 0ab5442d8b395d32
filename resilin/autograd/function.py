"""Operations with a hand-written backward: names of torch.autograd.function."""

from resilin.core.autograd.function import Function, FunctionCtx, once_differentiable

__all__ = ["Function", "FunctionCtx", "once_differentiable"]
