"""stowgrad: tensors and autograd shaped like torch; the values saved for backward belong to the user.

This file holds what ``import stowgrad`` gives at once: the native core and ``autograd``. Everything else is loaded when
it is first named (``_LAZY``, ``_FROM``). Invariant: numpy, typing, dataclasses, inspect, logging, tempfile and pickle
stay off the import path.
"""

from __future__ import annotations

import sys as _sys

from . import _C
from ._C import (  # noqa: F401 - the classes and dtypes of the core, by name so that readers and linters see them
    Size,
    Tensor,
    UntypedStorage,
    bfloat16,
    bool,
    device,
    double,
    dtype,
    finfo,
    float,
    float16,
    float32,
    float64,
    half,
    iinfo,
    int,
    int8,
    int16,
    int32,
    int64,
    layout,
    long,
    memory_format,
    short,
    strided,
    uint8,
)

__version__ = _C.__version__
# Programs that ask which torch this is get the interface that is followed, and who follows it.
torch_version = "2.13.0+stowgrad"

_HIDDEN = {"Node", "OpOverload", "OpOverloadPacket", "RemovableHandle", "SavedTensor"}
globals().update({_k: _v for _k, _v in vars(_C).items() if not _k.startswith("_") and _k not in _HIDDEN})



def _native_name(name: str):
    """Names that torch has in its native module and that need no native code here."""
    from . import _native

    return _native.lookup(name)


_C.__getattr__ = _native_name

inf = 1e400
nan = inf - inf
pi = 3.141592653589793
e = 2.718281828459045
newaxis = None

from . import autograd  # noqa: E402, F401 - needs the names above
from .autograd import enable_grad, inference_mode, no_grad, set_grad_enabled  # noqa: E402, F401

# Modules loaded when first named.
_LAZY = frozenset(
    "nn optim utils testing serialization random overrides linalg functional cuda backends version return_types "
    "special types amp compiler distributed jit storage stow".split()
)
# Names that live in a module loaded when first named.
_FROM = {
    "save": "serialization",
    "load": "serialization",
    "set_printoptions": "_tensor_str",
    "get_printoptions": "_tensor_str",
    "printoptions": "_tensor_str",
    "fork_rng": "random",
    "compile": "compiler",
    "autocast": "amp",
    "broadcast_shapes": "functional",
    "is_tensor": "functional",
    "is_storage": "functional",
    "is_floating_point": "functional",
    "is_complex": "functional",
    "is_nonzero": "functional",
    "numel": "functional",
    "typename": "functional",
    "set_default_tensor_type": "functional",
    "use_deterministic_algorithms": "functional",
    "are_deterministic_algorithms_enabled": "functional",
    "is_deterministic_algorithms_warn_only_enabled": "functional",
    "set_flush_denormal": "functional",
    "get_num_interop_threads": "functional",
    "set_num_interop_threads": "functional",
    "real": "functional",
    "imag": "functional",
    "conj": "functional",
    "conj_physical": "functional",
    "resolve_conj": "functional",
    "resolve_neg": "functional",
    "is_conj": "functional",
    "is_neg": "functional",
    "is_inference": "functional",
    "pdist": "functional",
    "spmm": "functional",
    "_unique": "_native",
    "_unique2": "_native",
    "_VF": "_native",
    "FloatTensor": "_legacy",
    "DoubleTensor": "_legacy",
    "HalfTensor": "_legacy",
    "BFloat16Tensor": "_legacy",
    "LongTensor": "_legacy",
    "IntTensor": "_legacy",
    "ShortTensor": "_legacy",
    "CharTensor": "_legacy",
    "ByteTensor": "_legacy",
    "BoolTensor": "_legacy",
    "ops": "_ops",
}


def __getattr__(name: str):
    module = name if name in _LAZY else _FROM.get(name)
    if module is not None:
        from importlib import import_module
        from importlib.util import find_spec

        if find_spec(f"{__name__}.{module}") is not None:
            found = import_module(f"{__name__}.{module}")
            value = found if module == name else getattr(found, name)
            globals()[name] = value
            return value
    raise AttributeError(
        f"stowgrad has no {name!r}: it is not implemented here (torch {torch_version.split('+')[0]} may have it)",
        name=name,
        obj=_sys.modules[__name__],
    )


def __dir__():
    return sorted({*globals(), *_LAZY, *_FROM})
