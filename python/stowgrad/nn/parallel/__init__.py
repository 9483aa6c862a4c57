"""Modules that spread work over devices."""

from stowgrad.nn.parallel.data_parallel import DataParallel, data_parallel

__all__ = ["DataParallel", "data_parallel"]
