"""The named tuples that operations with several results give: the core's own classes."""

from stowgrad import _C

globals().update(_C._return_types())
__all__ = sorted(_C._return_types())


def __dir__():
    return __all__
