"""Optimizers: rules by which parameters follow their gradients, and schedules of how fast."""

from stowgrad.optim import lr_scheduler
from stowgrad.optim.adadelta import Adadelta
from stowgrad.optim.adagrad import Adagrad
from stowgrad.optim.adam import Adam
from stowgrad.optim.adamax import Adamax
from stowgrad.optim.adamw import AdamW
from stowgrad.optim.asgd import ASGD
from stowgrad.optim.nadam import NAdam
from stowgrad.optim.optimizer import Optimizer
from stowgrad.optim.radam import RAdam
from stowgrad.optim.rmsprop import RMSprop
from stowgrad.optim.rprop import Rprop
from stowgrad.optim.sgd import SGD

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
]
