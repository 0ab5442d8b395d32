"""Parameters averaged every so many steps, for links that cannot carry gradients in every step.

averagers        every `period` steps over all ranks, or over larger groups more seldom
optimizers       PostLocalSGDOptimizer: an averager after each step; DiLoCoOptimizer: an outer step with momentum
"""

from resilin.ddp.model_averaging.averagers import ModelAverager, PeriodicModelAverager
from resilin.ddp.model_averaging.diloco import DiLoCoOptimizer
from resilin.ddp.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from resilin.ddp.model_averaging.post_localSGD_optimizer import PostLocalSGDOptimizer

__all__ = [
    "DiLoCoOptimizer",
    "HierarchicalModelAverager",
    "ModelAverager",
    "PeriodicModelAverager",
    "PostLocalSGDOptimizer",
]
