"""resilin.distributed.nn. Written by scripts/type_stubs.py."""

from resilin.rpc.nn import *
from resilin.distributed.nn import api as api
