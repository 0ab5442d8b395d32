"""resilin.distributed.optim.zero_redundancy_optimizer. Written by scripts/type_stubs.py."""

from resilin.zero import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer
