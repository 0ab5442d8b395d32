"""resilin.distributed.nn.api.remote_module. Written by scripts/type_stubs.py."""

from resilin.rpc.nn.api.remote_module import *
