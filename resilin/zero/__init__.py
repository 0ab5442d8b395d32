"""ZeRO: the state of training divided among the ranks that train. See README.md beside this file."""

from resilin.zero.optimizer import ZeroRedundancyOptimizer
from resilin.zero.sharded import MixedPrecisionPolicy, OptimizerState, ShardedModule, ShardedParameter, shard

__all__ = [
    "MixedPrecisionPolicy",
    "OptimizerState",
    "ShardedModule",
    "ShardedParameter",
    "ZeroRedundancyOptimizer",
    "shard",
]
