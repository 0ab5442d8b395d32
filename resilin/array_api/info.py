"""What the namespace can do: the object that `__array_namespace_info__()` gives."""

from __future__ import annotations

from typing import Any

from resilin.array_api import types
from resilin.core import dtype as dtypes
from resilin.core.device import CPU, device, device_types
from resilin.core.dtype import dtype as DType


def _check(where: Any) -> None:
    """RuntimeError for a device that does not exist; None is the default one."""
    if where is not None:
        device(where)


class Info:
    """Capabilities, devices and dtypes of the namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean indices and shapes that depend on data are supported; the number of dimensions is numpy's 64."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> device:
        """Where tensors are made when no device is given."""
        return CPU

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """What numbers become when no dtype is given; on every device the same. `set_default_dtype` changes them."""
        _check(device)
        real = dtypes.get_default_dtype()
        return {
            "real floating": real,
            "complex floating": dtypes.from_numpy(dtypes.complex_of(real.np)),
            "integral": dtypes.int64,
            "indexing": dtypes.int64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The dtypes by name: all, or those of one of the standard's kinds, or of a tuple of kinds."""
        _check(device)
        every = (dtypes.bool_, *types.KINDS["numeric"])
        return {one.name: one for one in every if kind is None or types.isdtype(one, kind)}

    def devices(self) -> list[device]:
        """Every device that tensors can be made on."""
        found = [(kind, device(kind).backend) for kind in device_types()]
        return [device(kind, i).home for kind, backend in found if backend.elements for i in range(backend.count())]


def namespace_info() -> Info:
    """What the namespace can do."""
    return Info()


namespace_info.__name__ = "__array_namespace_info__"
