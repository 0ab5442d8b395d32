"""The names of torch.utils that have a place here; `utils.data` has the names of `resilin.data`."""

from typing import TYPE_CHECKING

import resilin.data as data
from resilin.utils import _pytree as _pytree
from resilin.utils import checkpoint, deterministic, dlpack

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.utils import hooks as hooks
    from resilin.utils import model_zoo as model_zoo

__all__ = ["checkpoint", "data", "deterministic", "dlpack"]
