"""Modules that learn the shapes of their parameters from the first input."""

from __future__ import annotations

from typing import Any

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.state.write_log import unnoticed
from resilin.core.tensor import Tensor
from resilin.nn.modules.module import Module
from resilin.nn.parameter import is_lazy


class LazyModuleMixin(Module):
    """Put before another module class: its parameters may be UninitializedParameter until the first call.

    Subclasses define `initialize_parameters(*args, **kwargs)`, which gets the first call's arguments and materializes
    them. After it the module is an instance of `cls_to_become`, when there is one. A state_dict that is loaded before
    gives parameters their shapes, too.
    """

    cls_to_become: type[Module] | None = None

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Materialize the parameters for these arguments of `forward`."""
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer of this module, not of those below, waits for its shape."""
        return any(is_lazy(tensor) for tensor in (*self._parameters.values(), *self._buffers.values()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "_inferred" not in self.__dict__:
            self._infer_parameters(self, args, kwargs)
        return Module.__call__(self, *args, **kwargs)

    def _infer_parameters(self, module: Module, args: Any, kwargs: Any = None) -> None:
        with unnoticed():
            self.initialize_parameters(*args, **(kwargs or {}))
        if self.has_uninitialized_params():
            raise RuntimeError(f"module {type(self).__name__} has not been fully initialized by initialize_parameters")
        if self.cls_to_become is not None:
            self.__class__ = self.cls_to_become  # type: ignore[assignment]
        else:
            self.__dict__["_inferred"] = True

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        with no_grad():
            for name, tensor in (*self._parameters.items(), *self._buffers.items()):
                given = state_dict.get(prefix + name)
                if is_lazy(tensor) and isinstance(given, Tensor) and not is_lazy(given):
                    tensor.materialize(given.shape)  # type: ignore[union-attr]
        super()._load_from_state_dict(state_dict, prefix, *args)
