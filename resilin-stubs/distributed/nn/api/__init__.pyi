"""resilin.distributed.nn.api. Written by scripts/type_stubs.py."""

from resilin.rpc.nn.api import *
from resilin.distributed.nn.api import remote_module as remote_module
