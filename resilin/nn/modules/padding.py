"""Padding: rings of numbers around the last one, two or three dimensions."""

from __future__ import annotations

from typing import Any

from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn.modules.module import Module


class _Pad(Module):
    """`padding`: one length for all sides, or (before, after) from the last dimension backwards; negative cuts."""

    _axes = 0
    _mode = "constant"

    def __init__(self, padding: Any) -> None:
        super().__init__()
        sides = 2 * self._axes
        self.padding = (padding,) * sides if hasattr(padding, "__index__") else tuple(padding)
        if len(self.padding) != sides:
            raise UsageError(f"{type(self).__name__}: padding must be one integer or {sides}, got {padding!r}")

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"{self.padding}"


class _Constant(_Pad):
    """Padding with one number."""

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"padding={self.padding}, value={self.value}"


_ConstantPadNd = _Constant  # PyTorch's name, by which programs know the class


class _Zero(_Constant):
    """Padding with zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"{self.padding}"


class ConstantPad1d(_Constant):
    """`value` around the last dimension."""

    _axes = 1


class ConstantPad2d(_Constant):
    """`value` around the last two dimensions."""

    _axes = 2


class ConstantPad3d(_Constant):
    """`value` around the last three dimensions."""

    _axes = 3


class ZeroPad1d(_Zero):
    """Zeros around the last dimension."""

    _axes = 1


class ZeroPad2d(_Zero):
    """Zeros around the last two dimensions."""

    _axes = 2


class ZeroPad3d(_Zero):
    """Zeros around the last three dimensions."""

    _axes = 3


class _ReflectionPadNd(_Pad):
    """Padding by reflection, by PyTorch's name."""


class ReflectionPad1d(_ReflectionPadNd):
    """The last dimension mirrored at the edges, which are not repeated."""

    _axes = 1
    _mode = "reflect"


class ReflectionPad2d(_ReflectionPadNd):
    """The last two dimensions mirrored at the edges, which are not repeated."""

    _axes = 2
    _mode = "reflect"


class ReflectionPad3d(_ReflectionPadNd):
    """The last three dimensions mirrored at the edges, which are not repeated."""

    _axes = 3
    _mode = "reflect"


class _ReplicationPadNd(_Pad):
    """Padding by replication, by PyTorch's name."""


class ReplicationPad1d(_ReplicationPadNd):
    """The edges of the last dimension repeated outwards."""

    _axes = 1
    _mode = "replicate"


class ReplicationPad2d(_ReplicationPadNd):
    """The edges of the last two dimensions repeated outwards."""

    _axes = 2
    _mode = "replicate"


class ReplicationPad3d(_ReplicationPadNd):
    """The edges of the last three dimensions repeated outwards."""

    _axes = 3
    _mode = "replicate"


class _CircularPadNd(_Pad):
    """Padding by circular, by PyTorch's name."""


class CircularPad1d(_CircularPadNd):
    """The last dimension continued with the other end."""

    _axes = 1
    _mode = "circular"


class CircularPad2d(_CircularPadNd):
    """The last two dimensions continued with the other end."""

    _axes = 2
    _mode = "circular"


class CircularPad3d(_CircularPadNd):
    """The last three dimensions continued with the other end."""

    _axes = 3
    _mode = "circular"
