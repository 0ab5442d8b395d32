"""resilin.distributed.rpc.constants. Written by scripts/type_stubs.py."""

from resilin.rpc.constants import *
