"""resilin.distributed.rpc.api. Written by scripts/type_stubs.py."""

from resilin.rpc.api import *
