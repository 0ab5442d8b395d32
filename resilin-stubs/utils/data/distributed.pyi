"""resilin.utils.data.distributed. Written by scripts/type_stubs.py."""

from resilin.data.distributed import *
