"""resilin.nn.parallel. Written by scripts/type_stubs.py."""

from resilin.nn import DataParallel as DataParallel
from resilin.ddp import DistributedDataParallel as DistributedDataParallel
from resilin.ddp.old_names import DistributedDataParallelCPU as DistributedDataParallelCPU
from resilin.nn.modules.data_parallel import data_parallel as data_parallel
from resilin.nn.parallel import distributed as distributed
