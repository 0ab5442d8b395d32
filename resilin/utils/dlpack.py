"""The names of torch.utils.dlpack: `from_dlpack`, `to_dlpack`."""

from resilin.core.api.conversion.dlpack import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
