"""Optimizers and learning rate schedulers with the names and semantics of torch.optim."""

from resilin.optim import lr_scheduler, swa_utils
from resilin.optim.adam import Adam, AdamW
from resilin.optim.adam_family import Adamax, NAdam, RAdam
from resilin.optim.adaptive import Adadelta, Adagrad, RMSprop
from resilin.optim.lbfgs import LBFGS
from resilin.optim.matrix import Adafactor, Muon
from resilin.optim.optimizer import Optimizer
from resilin.optim.sgd import SGD
from resilin.optim.sign_and_mean import ASGD, Lion, Rprop
from resilin.optim.sparse_adam import SparseAdam

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SparseAdam",
    "lr_scheduler",
    "swa_utils",
]
