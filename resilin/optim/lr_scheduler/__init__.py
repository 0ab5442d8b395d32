"""Learning rate schedulers with the names and semantics of torch.optim.lr_scheduler."""

from resilin.optim.lr_scheduler.base import LRScheduler
from resilin.optim.lr_scheduler.combine import SequentialLR
from resilin.optim.lr_scheduler.cycle import OneCycleLR
from resilin.optim.lr_scheduler.decay import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    StepLR,
)
from resilin.optim.lr_scheduler.plateau import ReduceLROnPlateau

__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
