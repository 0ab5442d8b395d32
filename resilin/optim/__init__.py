"""Optimizers and learning rate schedulers with the names and semantics of torch.optim."""

from resilin.optim import lr_scheduler
from resilin.optim.adam import Adam, AdamW
from resilin.optim.optimizer import Optimizer
from resilin.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]
