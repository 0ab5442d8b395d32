"""Refuse the methods of modules that make no sense for one that lies elsewhere, by PyTorch's names and words."""

from __future__ import annotations

from typing import Any, NoReturn

from resilin.errors import UsageError
from resilin.nn import Module

_NAMES = """register_buffer register_parameter add_module apply cuda ipu xpu cpu type float double half bfloat16 to
register_backward_hook register_forward_pre_hook register_forward_hook state_dict load_state_dict parameters
named_parameters buffers named_buffers children named_children modules named_modules requires_grad_ zero_grad
share_memory extra_repr"""
REFUSED = tuple(_NAMES.split())
_INSTEAD = {"parameters": " Please use ``remote_parameters`` instead."}


class WithoutLocalState(Module):
    """A module that has neither parameters nor parts here: methods that are about these raise UsageError."""


def _refusing(name: str) -> Any:
    instead = _INSTEAD.get(name, "")
    text = f"Method ``{name}`` not supported for RemoteModule" + ("." if instead else "") + instead

    def method(self: WithoutLocalState, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(text)

    method.__name__, method.__qualname__ = name, f"RemoteModule.{name}"
    method.__doc__ = f"Raise UsageError: {text}."
    return method


for _name in REFUSED:
    setattr(WithoutLocalState, _name, _refusing(_name))
