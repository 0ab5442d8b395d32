"""resilin.distributed.optim.utils. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.utils import *
