"""resilin.distributed.optim. Written by scripts/type_stubs.py."""

from resilin.ddp.model_averaging import PostLocalSGDOptimizer as PostLocalSGDOptimizer
from resilin.zero import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer
from resilin.distributed.optim import post_localSGD_optimizer as post_localSGD_optimizer
from resilin.distributed.optim import zero_redundancy_optimizer as zero_redundancy_optimizer
