"""Let an optimizer step parameters by gradients that are given to it, with nothing of it in the parameters' `.grad`.

The optimizer has stand-ins: tensors over the parameters' memory, which share their versions and have gradients of their
own. So programs that train the same parameters otherwise, and other contexts, see no gradient that is not theirs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from resilin._base.clock import Deadline, spell
from resilin.core.tensor import Tensor
from resilin.errors import RpcTimeout, UsageError, UsageTypeError


class StandIns:
    """Those of a list of parameters."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        for place, parameter in enumerate(parameters):
            if not isinstance(parameter, Tensor):
                raise UsageTypeError(
                    f"an optimizer updates tensors, got {type(parameter).__name__} at place {place} of the parameters"
                )
            if not parameter.is_leaf:
                raise UsageError(
                    f"an optimizer updates leaf tensors only; that at place {place} was computed by an operation"
                )
        self._parameters = list(parameters)
        self.tensors = [_made(parameter) for parameter in parameters]

    @contextlib.contextmanager
    def with_gradients(self, gradients: Sequence[Tensor | None]) -> Iterator[None]:
        """Give the stand-ins these gradients for the time of the block; what the block puts in their places stays."""
        given: list[tuple[Any, Any, Any]] = []
        for stand_in, parameter, gradient in zip(self.tensors, self._parameters, gradients, strict=True):
            stand_in._array, stand_in._dev, stand_in._grad = parameter._array, parameter._dev, gradient
            given.append((stand_in, parameter, parameter._array))
        try:
            yield
        finally:
            for stand_in, parameter, array in given:
                stand_in._grad = None
                if stand_in._array is not array:
                    parameter._array = stand_in._array


def _made(parameter: Tensor) -> Any:
    made: Any = parameter.detach()
    made._rg = parameter.requires_grad
    return made


class Turns:
    """Steps over the same parameters come one after the other, those over others at the same time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: set[int] = set()  # guarded by _changed: ids of parameters that are stepped

    @contextlib.contextmanager
    def over(self, parameters: Sequence[object], limit_s: float | None) -> Iterator[None]:
        """Wait until nobody steps any of `parameters`, and have others wait. RpcTimeout after `limit_s`."""
        mine = {id(parameter) for parameter in parameters}
        with self._changed:
            if not self._changed.wait_for(lambda: self._busy.isdisjoint(mine), Deadline(limit_s).left()):
                raise RpcTimeout(f"another step over the same parameters has not ended within {spell(limit_s)}")
            self._busy |= mine
        try:
            yield
        finally:
            with self._changed:
                self._busy -= mine
                self._changed.notify_all()


turns = Turns()
"""Those of this process."""
