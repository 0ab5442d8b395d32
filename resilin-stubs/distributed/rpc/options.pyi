"""resilin.distributed.rpc.options. Written by scripts/type_stubs.py."""

from resilin.rpc.options import *
