"""The names of torch.utils that have a place here; data loading is `resilin.data`, checkpointing `resilin.autograd`."""

from resilin.utils import deterministic

__all__ = ["deterministic"]
