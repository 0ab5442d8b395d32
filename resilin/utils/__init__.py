"""The names of torch.utils that have a place here; `utils.data` has the names of `resilin.data`."""

import resilin.data as data
from resilin.utils import checkpoint, deterministic, dlpack

__all__ = ["checkpoint", "data", "deterministic", "dlpack"]
