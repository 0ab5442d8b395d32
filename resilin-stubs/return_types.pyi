"""resilin.return_types. Written by scripts/type_stubs.py."""

from resilin.core.return_types import *
