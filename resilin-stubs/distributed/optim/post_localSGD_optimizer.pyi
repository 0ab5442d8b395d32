"""resilin.distributed.optim.post_localSGD_optimizer. Written by scripts/type_stubs.py."""

from resilin.ddp.model_averaging import PostLocalSGDOptimizer as PostLocalSGDOptimizer
