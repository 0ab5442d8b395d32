"""resilin.dist. Written by scripts/type_stubs.py."""

from resilin.distributed import *
