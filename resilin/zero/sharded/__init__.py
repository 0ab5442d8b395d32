"""ZeRO stages 2 and 3: gradients, and parameters, divided among the ranks. Begin reading in `shard.py`."""

from resilin.zero.sharded.module import ShardedModule
from resilin.zero.sharded.optimizer_state import OptimizerState
from resilin.zero.sharded.policy import MixedPrecisionPolicy
from resilin.zero.sharded.shard import shard
from resilin.zero.sharded.unit import ShardedParameter

__all__ = ["MixedPrecisionPolicy", "OptimizerState", "ShardedModule", "ShardedParameter", "shard"]
