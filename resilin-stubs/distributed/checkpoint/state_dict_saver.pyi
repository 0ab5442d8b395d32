"""resilin.distributed.checkpoint.state_dict_saver. Written by scripts/type_stubs.py."""

from resilin.checkpoint import save as save
