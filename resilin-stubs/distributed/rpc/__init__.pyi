"""resilin.distributed.rpc. Written by scripts/type_stubs.py."""

from resilin.rpc import *
from resilin.distributed.rpc import api as api
from resilin.distributed.rpc import backend_registry as backend_registry
from resilin.distributed.rpc import constants as constants
from resilin.distributed.rpc import functions as functions
from resilin.distributed.rpc import options as options
