"""Optimizers and learning rate schedulers with the names and semantics of torch.optim."""

from typing import TYPE_CHECKING

from resilin.optim import lr_scheduler, swa_utils
from resilin.optim._adafactor import Adafactor
from resilin.optim._muon import Muon
from resilin.optim.adadelta import Adadelta
from resilin.optim.adagrad import Adagrad
from resilin.optim.adam import Adam
from resilin.optim.adamax import Adamax
from resilin.optim.adamw import AdamW
from resilin.optim.asgd import ASGD
from resilin.optim.lbfgs import LBFGS
from resilin.optim.lion import Lion
from resilin.optim.nadam import NAdam
from resilin.optim.optimizer import Optimizer
from resilin.optim.radam import RAdam
from resilin.optim.rmsprop import RMSprop
from resilin.optim.rprop import Rprop
from resilin.optim.sgd import SGD
from resilin.optim.sparse_adam import SparseAdam

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.optim import adadelta as adadelta
    from resilin.optim import adagrad as adagrad
    from resilin.optim import adamax as adamax
    from resilin.optim import adamw as adamw
    from resilin.optim import asgd as asgd
    from resilin.optim import nadam as nadam
    from resilin.optim import radam as radam
    from resilin.optim import rmsprop as rmsprop
    from resilin.optim import rprop as rprop

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
