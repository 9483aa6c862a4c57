"""The graph of autograd as users handle it: hooks on saved values, nodes, edges.

The hook stacks and the nodes are native; a hooks context here only pushes and pops. `register_multi_grad_hook` and
`allow_mutation_on_saved_tensors` are native too and are answered by the core (module `__getattr__`).
Invariant: what a context pushed it pops exactly once, also when its body raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from stowgrad import _C
from stowgrad.autograd.function import BackwardCFunction
from stowgrad.autograd.grad_mode import _DecoratorContextManager, enable_grad

__all__ = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]

_push = _C._autograd._push_saved_tensors_default_hooks
_push_host_memory = _C._autograd._push_host_memory
_pop = _C._autograd._pop_saved_tensors_default_hooks
_Tensor = _C.Tensor


class Node(ABC):
    """A node of the graph: `isinstance(y.grad_fn, Node)` holds for native operations and for custom Functions."""

    @abstractmethod
    def name(self) -> str:
        """The node's name, such as `'MulBackward0'`."""
        raise NotImplementedError

    @property
    @abstractmethod
    def next_functions(self) -> tuple:
        """`(node, output_nr)` of each input; `(None, 0)` where no gradient goes."""
        raise NotImplementedError

    @abstractmethod
    def metadata(self) -> dict:
        """A dictionary of the user's, kept with the node."""
        raise NotImplementedError

    @property
    def _input_metadata(self) -> list:
        """Shape, dtype and device of the gradients that this node receives."""
        raise NotImplementedError

    @abstractmethod
    def register_hook(self, fn):
        """Calls `fn(grad_inputs, grad_outputs)` after the node; what it returns, if not None, replaces grad_inputs.
        Returns a handle.
        """
        raise NotImplementedError

    @abstractmethod
    def register_prehook(self, fn):
        """Calls `fn(grad_outputs)` before the node; what it returns, if not None, replaces grad_outputs. Returns a
        handle.
        """
        raise NotImplementedError

    @classmethod
    def __subclasshook__(cls, subclass):
        if cls is Node and issubclass(subclass, (_C.Node, BackwardCFunction)):
            return True
        return NotImplemented


class GradientEdge(tuple):
    """An edge of the graph: the gradient that `node` receives as its `output_nr`-th. Stands for a tensor in `backward`
    and `grad`.
    """

    __slots__ = ()
    _fields = ("node", "output_nr", "ownership_token")

    def __new__(cls, node, output_nr, ownership_token=None):
        return tuple.__new__(cls, (node, output_nr, ownership_token))

    @property
    def node(self) -> Node:
        return self[0]

    @property
    def output_nr(self) -> int:
        return self[1]

    @property
    def ownership_token(self):
        return self[2]

    def __getnewargs__(self):
        return tuple(self)

    def _replace(self, **kwargs):
        return type(self)(*(kwargs.pop(name, value) for name, value in zip(self._fields, self, strict=True)), **kwargs)

    def _asdict(self) -> dict:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        return f"GradientEdge(node={self[0]!r}, output_nr={self[1]!r}, ownership_token={self[2]!r})"


def _get_grad_fn_or_grad_acc(t) -> Node:
    """The node that `t`'s gradient flows into: its grad_fn, or its accumulator if it is a leaf."""
    if type(t) is GradientEdge:
        return t.node
    node = t.grad_fn
    if node is None and t.requires_grad:
        with enable_grad():
            node = t.view_as(t).grad_fn.next_functions[0][0]
    if node is None:
        raise RuntimeError(f"a tensor of shape {tuple(t.shape)} that does not require grad has no node")
    return node


def get_gradient_edge(tensor) -> GradientEdge:
    """The edge through which `tensor` gets its gradient. RuntimeError if it requires none.

    >>> import stowgrad as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> y = x * 3
    >>> edge = torch.autograd.graph.get_gradient_edge(y)
    >>> edge.node.name(), edge.output_nr
    ('MulBackward0', 0)
    """
    if not tensor.requires_grad:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require gradients "
            f"(shape {tuple(tensor.shape)}, dtype {tensor.dtype})"
        )
    return GradientEdge(_get_grad_fn_or_grad_acc(tensor), tensor.output_nr)


def increment_version(tensor) -> None:
    """Tells autograd that a tensor, or each tensor of an iterable, was written by other means: saved uses of it become
    errors.

    >>> import stowgrad as torch
    >>> x = torch.ones(2)
    >>> torch.autograd.graph.increment_version(x)
    >>> x._version
    1
    """
    _C._increment_version((tensor,) if isinstance(tensor, _Tensor) else tuple(tensor))


class saved_tensors_hooks:
    """Inside, each value saved for backward goes through `pack_hook(tensor)`, and what that returns is kept in its
    place; `unpack_hook(packed)` must give the tensor back, with the same shape and dtype, each time it is used.

    Of nested pairs the innermost applies, per thread. `pack_hook` runs with grad disabled and must not write to its
    argument.

    >>> import stowgrad as torch
    >>> x = torch.tensor([2.0], requires_grad=True)
    >>> with torch.autograd.graph.saved_tensors_hooks(lambda t: t.tolist(), lambda packed: torch.tensor(packed)):
    ...     y = x.exp()
    >>> y.backward()
    """

    __slots__ = ("__weakref__", "pack_hook", "unpack_hook")

    def __init__(self, pack_hook, unpack_hook) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        _push(self.pack_hook, self.unpack_hook)

    def __exit__(self, *args) -> None:
        _pop()


def _to_cpu(tensor):
    return tensor.device, tensor.cpu()


def _back(packed):
    device, tensor = packed
    return tensor if tensor.device == device else tensor.to(device)


class save_on_cpu(saved_tensors_hooks):
    """Inside, values saved for backward are kept in host memory and brought back for use; those already there are kept
    as they are: by their slots, and checked for writes as without this context.

    `pin_memory` copies into page-locked memory where there is a GPU, and makes a plain copy otherwise.

    >>> import stowgrad as torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> with torch.autograd.graph.save_on_cpu():
    ...     y = (x * x).sum()
    >>> y.backward()
    """

    __slots__ = ()

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        if not pin_memory:
            saved_tensors_hooks.__init__(self, _to_cpu, _back)
            return

        def pack_pinned(tensor):
            packed = _C.empty(
                tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=tensor.device.type != "cpu"
            )
            packed.copy_(tensor)
            return tensor.device, packed

        def unpack_pinned(packed):
            device, tensor = packed
            return tensor.to(device, non_blocking=True)

        saved_tensors_hooks.__init__(self, pack_pinned, unpack_pinned)

    def __enter__(self) -> None:
        if self.pack_hook is _to_cpu:
            _push_host_memory()
        else:
            saved_tensors_hooks.__enter__(self)


class disable_saved_tensors_hooks(_DecoratorContextManager):
    """Inside, entering a saved-tensor hooks context is a RuntimeError with this message; entering with one open is one
    too.

    >>> import stowgrad as torch
    >>> with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
    ...     try:
    ...         torch.autograd.graph.save_on_cpu().__enter__()
    ...     except RuntimeError as e:
    ...         print(e)
    not here
    """

    __slots__ = ("error_message", "prev")

    def __init__(self, error_message: str) -> None:
        self.error_message = error_message

    def __enter__(self) -> None:
        autograd = _C._autograd
        self.prev = (autograd._saved_tensors_hooks_get_disabled_error_message(), getattr(self, "prev", None))
        autograd._saved_tensors_hooks_disable(self.error_message)

    def __exit__(self, *args) -> None:
        message, self.prev = self.prev
        if message is None:
            _C._autograd._saved_tensors_hooks_enable()
        else:
            _C._autograd._saved_tensors_hooks_disable(message)

    def clone(self):
        return type(self)(self.error_message)


def region_activation_memory_budget(budget: float):
    """A budget for torch's compiler; stowgrad has none, so asking for it outside compiled code is an error, as in
    torch.
    """
    raise RuntimeError(
        "region_activation_memory_budget only has an effect under torch.compile, and stowgrad does not compile; "
        "see stowgrad.stow for budgets on saved values"
    )


def set_warn_on_accumulate_grad_stream_mismatch(enabled: bool) -> None:
    """A warning about CUDA streams; on the CPU there are none."""
    raise RuntimeError("set_warn_on_accumulate_grad_stream_mismatch: about CUDA streams, which stowgrad does not have")


def set_override_stale_capture_stream(enabled: bool) -> None:
    """A setting of CUDA graph capture; on the CPU there is none."""
    raise RuntimeError("set_override_stale_capture_stream: about CUDA graph capture, which stowgrad does not have")


register_multi_grad_hook = _C.register_multi_grad_hook


def allow_mutation_on_saved_tensors():
    """Inside, tensors saved for backward may be overwritten: a value is copied at the first write that would change it, and only then.

    Forward and backward must both run inside. The context object shows what it holds: `len(ctx.original)`, `len(ctx.cloned)`,
    `ctx.cloned.bytes`. Leaving releases everything; backward afterwards is an AssertionError, nesting a RuntimeError.

    >>> import stowgrad as torch
    >>> with torch.autograd.graph.allow_mutation_on_saved_tensors():
    ...     a = torch.ones(2, 3, requires_grad=True)
    ...     b = a.clone()
    ...     out = (b ** 2).sum()
    ...     _ = b.sin_()
    ...     out.backward()
    >>> a.grad
    tensor([[2., 2., 2.],
            [2., 2., 2.]])
    """
    return _C._MutationGuard()
