"""ZeRO: the state of training divided among the ranks that train. See README.md beside this file."""

from resilin.zero.optimizer import ZeroRedundancyOptimizer
from resilin.zero.sharded import MixedPrecisionPolicy, ShardedModule, ShardedParameter, shard

__all__ = ["MixedPrecisionPolicy", "ShardedModule", "ShardedParameter", "ZeroRedundancyOptimizer", "shard"]
