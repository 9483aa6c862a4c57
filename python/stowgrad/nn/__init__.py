"""Neural networks: layers, the functions behind them, and how their parameters start."""

from stowgrad.nn import functional, init, modules, parallel, parameter, utils
from stowgrad.nn.modules import *  # noqa: F403
from stowgrad.nn.modules import __all__ as _layers
from stowgrad.nn.parallel import DataParallel
from stowgrad.nn.parameter import Buffer, Parameter

__all__ = [
    *_layers,
    "Buffer",
    "DataParallel",
    "Parameter",
    "functional",
    "init",
    "modules",
    "parallel",
    "parameter",
    "utils",
]
