"""resilin.nn.modules.fold. Written by scripts/type_stubs.py."""

from resilin.nn import Fold as Fold
from resilin.nn import Unfold as Unfold
