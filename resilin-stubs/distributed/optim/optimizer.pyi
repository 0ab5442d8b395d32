"""resilin.distributed.optim.optimizer. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.optimizer import *
