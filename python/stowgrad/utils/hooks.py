"""Handles of hooks, and marks on hook functions.

A handle belongs to a dictionary of hooks, which it holds weakly: it outlives neither the tensor nor the module.
Invariants: `remove` may be called any number of times, also from inside the hook; a handle pickles, and comes back as
one that removes from the dictionary that was pickled with it.
"""

from __future__ import annotations

from weakref import ref

from stowgrad import _C

_NATIVE = getattr(_C, "RemovableHandle", ())

__all__ = ["RemovableHandle", "unserializable_hook", "warn_if_has_hooks"]


class _HandleMeta(type):
    """The core's own handles, of hooks on tensors and nodes, are RemovableHandles too."""

    def __instancecheck__(cls, obj) -> bool:
        return type.__instancecheck__(cls, obj) or (cls is RemovableHandle and isinstance(obj, _NATIVE))


class RemovableHandle(metaclass=_HandleMeta):
    """Removes the hook that it was returned for: by `remove()`, or at the end of a `with` block.

    `hooks_dict` maps ids to hooks, and the hook is to be put in under `handle.id`; `extra_dict`, one dictionary or a
    list, is kept in step with it.

    >>> from collections import OrderedDict
    >>> hooks = OrderedDict()
    >>> handle = RemovableHandle(hooks)
    >>> hooks[handle.id] = print
    >>> handle.remove(), handle.remove(), len(hooks)
    (None, None, 0)
    """

    id: int
    next_id: int = 0

    def __init__(self, hooks_dict, *, extra_dict=None) -> None:
        self.hooks_dict_ref = ref(hooks_dict)
        self.id = RemovableHandle.next_id
        RemovableHandle.next_id += 1
        self.extra_dict_ref: tuple = ()
        if isinstance(extra_dict, dict):
            self.extra_dict_ref = (ref(extra_dict),)
        elif isinstance(extra_dict, list):
            self.extra_dict_ref = tuple(ref(d) for d in extra_dict)

    def remove(self) -> None:
        """Takes the hook away; does nothing if it is gone already."""
        for reference in (self.hooks_dict_ref, *self.extra_dict_ref):
            hooks = reference()
            if hooks is not None:
                hooks.pop(self.id, None)

    def __getstate__(self):
        if not self.extra_dict_ref:
            return self.hooks_dict_ref(), self.id
        return self.hooks_dict_ref(), self.id, tuple(reference() for reference in self.extra_dict_ref)

    def __setstate__(self, state) -> None:
        from collections import OrderedDict

        hooks, self.id = state[:2]
        self.hooks_dict_ref = ref(OrderedDict() if hooks is None else hooks)  # one that died at once, if there is none
        self.extra_dict_ref = tuple(
            ref(OrderedDict() if d is None else d) for d in (state[2] if len(state) > 2 else ())
        )
        RemovableHandle.next_id = max(RemovableHandle.next_id, self.id + 1)

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        self.remove()


def unserializable_hook(f):
    """Marks a hook that may be left out silently when its tensor is pickled or saved.

    >>> @unserializable_hook
    ... def hook(grad):
    ...     return grad
    """
    f.__torch_unserializable__ = True
    return f


def warn_if_has_hooks(tensor) -> None:
    """Warns of each hook of a tensor that pickling leaves behind, unless it is marked by `unserializable_hook`."""
    hooks = getattr(tensor, "_backward_hooks", None)
    if not hooks:
        return
    import warnings

    for hook in hooks.values():
        if not getattr(hook, "__torch_unserializable__", False):
            warnings.warn(
                f"backward hook {hook!r} on tensor will not be serialized: if that is meant, decorate it with "
                "stowgrad.utils.hooks.unserializable_hook",
                stacklevel=4,
            )


def __getattr__(name: str):
    if name == "BackwardHook":  # it belongs to modules
        from stowgrad.nn.modules.module_hooks import BackwardHook

        return BackwardHook
    import sys

    raise AttributeError(f"stowgrad.utils.hooks has no {name!r}", name=name, obj=sys.modules[__name__])
