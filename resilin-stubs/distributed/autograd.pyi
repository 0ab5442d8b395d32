"""resilin.distributed.autograd. Written by scripts/type_stubs.py."""

from resilin.rpc.autograd import *
