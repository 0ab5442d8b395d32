"""ZeRO: the state of training divided among the ranks that train. See README.md beside this file."""

from resilin.zero.grad_scaler import ShardedGradScaler
from resilin.zero.optimizer import ZeroRedundancyOptimizer
from resilin.zero.sharded.mixed_precision import MixedPrecisionPolicy
from resilin.zero.sharded.module import ShardedModule
from resilin.zero.sharded.optimizer_state import OptimizerState
from resilin.zero.sharded.shard import shard
from resilin.zero.sharded.unit import ShardedParameter

__all__ = [
    "MixedPrecisionPolicy",
    "OptimizerState",
    "ShardedGradScaler",
    "ShardedModule",
    "ShardedParameter",
    "ZeroRedundancyOptimizer",
    "shard",
]
