"""resilin.distributed.rpc.backend_registry. Written by scripts/type_stubs.py."""

from resilin.rpc.backend_registry import *
