"""resilin.distributed.checkpoint.state_dict_loader. Written by scripts/type_stubs.py."""

from resilin.checkpoint import load as load
