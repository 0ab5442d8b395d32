"""Data-parallel training: gradients averaged over ranks while backward runs, or summed per shard for the same bits."""

from resilin.ddp import comm_hooks, model_averaging
from resilin.ddp.grad_bucket import GradBucket
from resilin.ddp.shard_sums import ShardSums
from resilin.ddp.traffic import Traffic
from resilin.ddp.wrapper import DistributedDataParallel

__all__ = ["DistributedDataParallel", "GradBucket", "ShardSums", "Traffic", "comm_hooks", "model_averaging"]
