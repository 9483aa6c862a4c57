"""The sizes that layers take, under the name that they have in torch: see `nn._sizes`."""

from stowgrad.nn._sizes import (
    _list_with_default,
    _ntuple,
    _pair,
    _quadruple,
    _reverse_repeat_tuple,
    _single,
    _triple,
)

__all__ = [
    "_list_with_default",
    "_ntuple",
    "_pair",
    "_quadruple",
    "_reverse_repeat_tuple",
    "_single",
    "_triple",
]
