"""resilin.distributed.checkpoint. Written by scripts/type_stubs.py."""

from resilin.checkpoint import *
from resilin.distributed.checkpoint import state_dict_loader as state_dict_loader
from resilin.distributed.checkpoint import state_dict_saver as state_dict_saver
from resilin.distributed.checkpoint import storage as storage
