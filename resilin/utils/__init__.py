"""The names of torch.utils that have a place here; data loading is `resilin.data`."""

from resilin.utils import checkpoint, deterministic

__all__ = ["checkpoint", "deterministic"]
