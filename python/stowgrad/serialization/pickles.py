"""Plain pickles and deep copies of tensors, for the core's `__reduce_ex__` and `__deepcopy__`. Hooks and graphs are
left behind.

Invariants: what is pickled names stowgrad; storages that tensors share are shared by their copies too.
"""

from __future__ import annotations

import pickle

from stowgrad import _C
from stowgrad.serialization.names import set_state
from stowgrad.serialization.pickler import state_of, warn_hooks
from stowgrad.serialization.storages import copy_storage, dtype_name, new_storage, tensor_on, view_of


def _rebuild_storage(data):
    storage = new_storage(memoryview(data).nbytes)
    if storage.nbytes():
        view_of(storage)[:] = memoryview(data).cast("B")
    return storage


def _reduce_storage(storage, protocol: int) -> tuple:
    """`UntypedStorage.__reduce_ex__`: its bytes, out of band where the pickler can do that."""
    if protocol >= 5 and storage.nbytes():
        return _rebuild_storage, (pickle.PickleBuffer(view_of(storage)),)
    return _rebuild_storage, (bytes(view_of(storage)) if storage.nbytes() else b"",)


def _rebuild_tensor(cls, storage, dtype: str, offset: int, size, stride, requires_grad: bool, state):
    t = tensor_on(storage, getattr(_C, dtype), offset, size, stride)
    if cls is not _C.Tensor:
        t = _C.Tensor._make_subclass(cls, t, requires_grad)
    elif requires_grad:
        t.requires_grad_(True)
    return set_state(t, state)


def _reduce_tensor(t, protocol: int) -> tuple:
    """`Tensor.__reduce_ex__`: class, storage, layout, `requires_grad`, attributes; neither hooks nor graph."""
    warn_hooks(t)
    host = t if t.device.type == "cpu" else t.detach().cpu()
    return _rebuild_tensor, (
        type(t),
        host.untyped_storage(),
        dtype_name(t.dtype),
        host.storage_offset(),
        tuple(host.size()),
        tuple(host.stride()),
        t.requires_grad,
        state_of(t),
    )


def _deepcopy_tensor(t, memo: dict):
    """`Tensor.__deepcopy__`: a leaf with its own storage (shared among the copies as among the originals), gradient
    and attributes.
    """
    if id(t) in memo:
        return memo[id(t)]
    if not t.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment; "
            "this one, of "
            f"shape {tuple(t.shape)}, is the result of {t.grad_fn.name()}: detach() or clone() it"
        )
    from copy import deepcopy

    storages = memo.setdefault("stowgrad storages", {})
    storage = t.untyped_storage()
    address = storage.data_ptr() if storage.nbytes() else id(storage)
    if address not in storages:
        storages[address] = (
            storage,
            copy_storage(storage),
        )  # the original stays alive, so that its address stays its own
    copy = tensor_on(storages[address][1], t.dtype, t.storage_offset(), t.size(), t.stride())
    if type(t) is not _C.Tensor:
        copy = _C.Tensor._make_subclass(type(t), copy, t.requires_grad)
    elif t.requires_grad:
        copy.requires_grad_(True)
    memo[id(t)] = copy
    if t.grad is not None:
        copy.grad = deepcopy(t.grad, memo)
    state = state_of(t)
    if state is not None:
        set_state(copy, deepcopy(state, memo))
    return copy
