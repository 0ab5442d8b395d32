"""Moving and converting a module: the values of parameters and buffers are replaced, parameters keep their identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from resilin._base import log
from resilin._base.said_once import say_once
from resilin.core import dtype as dtypes
from resilin.core.ops.creation import empty_like
from resilin.core.state import sharing
from resilin.core.tensor import Parameter, Tensor
from resilin.nn.parameter import is_lazy

_LOG = log.logger("nn")


class Convertible:
    """What a Module can be converted to; Module is the only class to inherit from it."""

    _buffers: dict[str, Tensor | None]
    modules: Callable[..., Iterator[Any]]
    parameters: Callable[[bool], Iterator[Parameter]]
    buffers: Callable[[bool], Iterator[Tensor]]

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert parameters and buffers in place; arguments as `Tensor.to`.

        A dtype changes floats only, a memory format what has the dimensions of images or volumes.
        """
        order = kwargs.pop("memory_format", None)
        for wanted in (*args, kwargs.get("dtype")):
            if isinstance(wanted, dtypes.dtype) and not (wanted.is_floating_point or wanted.is_complex):
                raise TypeError(
                    f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={wanted}"
                )

        def convert(tensor: Tensor) -> Tensor:
            given, named = args, kwargs
            if not (tensor.is_floating_point() or tensor.is_complex()):
                given = tuple(arg for arg in args if not isinstance(arg, dtypes.dtype))
                named = {key: value for key, value in kwargs.items() if key != "dtype"}
            converted: Tensor = tensor.to(*given, **named) if given or named else tensor
            return converted if order is None or tensor.dim() not in (4, 5) else converted.to(memory_format=order)

        return self._apply(convert)

    def float(self) -> Self:
        """Convert floating point parameters and buffers to float32."""
        return self.to(dtypes.float32)

    def double(self) -> Self:
        """Convert floating point parameters and buffers to float64."""
        return self.to(dtypes.float64)

    def half(self) -> Self:
        """Convert floating point parameters and buffers to float16."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        """Convert floating point parameters and buffers to bfloat16."""
        return self.to(dtypes.bfloat16)

    def cpu(self) -> Self:
        """Move parameters and buffers to the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Self:
        """Move parameters and buffers to a GPU (default: the first)."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def type(self, dst_type: Any) -> Self:
        """Convert all parameters and buffers, integers too, to the dtype `dst_type`."""
        return self._apply(lambda tensor: tensor.type(dst_type))

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Move parameters and buffers to `device` without their values: new memory, to be written before it is read."""
        return self._apply(lambda tensor: empty_like(tensor, device=device), recurse)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Change nothing, and say once that nothing is compiled: operations run when they are called."""
        say_once(_LOG, "Module.compile: nothing is compiled here; the module runs as it is")

    def share_memory(self) -> Self:
        """Move parameters, their gradients and buffers to memory that other processes can read and write.

        All lie in one memory file, which is kept as long as any of them. A process that gets the module (as an
        argument, through a queue, by a fork) has the same parameters: an optimizer's steps show on both sides.
        """
        tensors: list[Tensor] = [*self.parameters(True), *self.buffers(True)]
        for tensor in tensors:
            if is_lazy(tensor):
                tensor.share_memory_()  # raises
        sharing.share([*tensors, *(tensor.grad for tensor in tensors if tensor.grad is not None)])
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace the value of every parameter and buffer by `fn` of it; parameters keep their identity."""
        for parameter in self.parameters(recurse):
            parameter.data = fn(parameter.data)
            if parameter.grad is not None:
                parameter._grad = fn(parameter.grad.detach())
        done: dict[int, Tensor] = {}
        for module in self.modules() if recurse else (self,):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    if is_lazy(buffer):
                        buffer.data = fn(buffer.data)
                        continue
                    done.setdefault(id(buffer), fn(buffer))
                    module._buffers[name] = done[id(buffer)]
        return self
