"""The names of torch.types: what annotations of programs for PyTorch are written with."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import IO, Any, TypeAlias

from resilin.core import dtype as dtypes
from resilin.core.api.conversion.layouts import UntypedStorage as Storage
from resilin.core.device import device
from resilin.core.ops.creation import layout
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor

__all__ = ["Device", "FileLike", "Number", "Storage"]

Number: TypeAlias = builtins.int | builtins.float | builtins.bool
Device: TypeAlias = device | str | builtins.int | None
FileLike: TypeAlias = str | os.PathLike[str] | IO[bytes]

_Number = (builtins.int, builtins.float, builtins.bool)
_TensorOrTensors: TypeAlias = Tensor | Sequence[Tensor]
_dtype, _device, _layout, _size = dtypes.dtype, device, layout, Size | list[builtins.int] | tuple[builtins.int, ...]
_int, _float, _bool, _complex = builtins.int, builtins.float, builtins.bool, builtins.complex
_symint, _symfloat = _int, _float
_dispatchkey: Any = str
