"""resilin.distributed.checkpoint.storage. Written by scripts/type_stubs.py."""

from resilin.checkpoint.storage import *
