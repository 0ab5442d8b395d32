"""resilin.nn.parallel.distributed. Written by scripts/type_stubs.py."""

from resilin.ddp import DistributedDataParallel as DistributedDataParallel
