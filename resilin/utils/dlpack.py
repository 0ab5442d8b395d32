"""The names of torch.utils.dlpack: `from_dlpack`, `to_dlpack`."""

from resilin.core.api.exchange import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
