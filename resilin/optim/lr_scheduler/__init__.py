"""Learning rate schedulers with the names and semantics of torch.optim.lr_scheduler."""

from resilin.optim.lr_scheduler.base import LRScheduler
from resilin.optim.lr_scheduler.combine import ChainedScheduler, SequentialLR
from resilin.optim.lr_scheduler.cycle import OneCycleLR
from resilin.optim.lr_scheduler.cyclic import CyclicLR
from resilin.optim.lr_scheduler.decay import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from resilin.optim.lr_scheduler.functions import LambdaLR, MultiplicativeLR
from resilin.optim.lr_scheduler.plateau import ReduceLROnPlateau

_LRScheduler = LRScheduler  # the older name

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
