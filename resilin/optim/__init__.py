"""Optimizers and learning rate schedulers with the names and semantics of torch.optim."""

from resilin.optim import lr_scheduler, swa_utils
from resilin.optim.adam import Adam, AdamW
from resilin.optim.adam_family import Adamax, NAdam, RAdam
from resilin.optim.adaptive import Adadelta, Adagrad, RMSprop
from resilin.optim.lbfgs import LBFGS
from resilin.optim.optimizer import Optimizer
from resilin.optim.sgd import SGD
from resilin.optim.sign_and_mean import ASGD, Lion, Rprop

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
    "swa_utils",
]
