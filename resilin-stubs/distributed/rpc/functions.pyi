"""resilin.distributed.rpc.functions. Written by scripts/type_stubs.py."""

from resilin.rpc.functions import *
