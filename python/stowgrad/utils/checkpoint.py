"""Checkpointing: a region's saved values are forgotten and computed again for backward.

The frames are native (`_C.checkpoint`): what a frame keeps, when it runs again and what is compared is decided there. Here are its
settings, the reentrant variant, and selective checkpointing. Invariant: a context entered here is left on every way out.
"""

from __future__ import annotations

import enum
from _thread import _local

from stowgrad import _C
from stowgrad._C import CheckpointError, checkpoint
from stowgrad.autograd.function import Function
from stowgrad.utils._python_dispatch import TorchDispatchMode
from stowgrad.utils._pytree import tree_map

__all__ = [
    "CheckpointError",
    "CheckpointFunction",
    "CheckpointPolicy",
    "DefaultDeviceType",
    "GraphExecGroup",
    "SelectiveCheckpointContext",
    "checkpoint",
    "checkpoint_sequential",
    "create_selective_checkpoint_contexts",
    "get_device_states",
    "noop_context_fn",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
    "set_device_states",
]


class _Setting:
    """A setting of this thread for the length of a `with` block. `put(value)` puts a value in place and returns the one before."""

    __slots__ = ("old", "put", "value")

    def __init__(self, put, value):
        self.put, self.value = put, value

    def __enter__(self) -> None:
        self.old = self.put(self.value)

    def __exit__(self, *args) -> None:
        self.put(self.old)


class _Groups(_local):
    """The group that is open on a thread."""

    group: GraphExecGroup | None = None


_groups = _Groups()


class CheckpointPolicy(enum.Enum):
    """What selective checkpointing does with the output of an operation.

    MUST_SAVE, PREFER_SAVE: keeps it, and recomputations take it instead of running the operation. MUST_RECOMPUTE, PREFER_RECOMPUTE: lets
    it go, and the operation runs again. MUST_CPU_OFFLOAD, PREFER_CPU_OFFLOAD: keeps it in the CPU's memory, where it is already.
    """

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_RECOMPUTES = frozenset((CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE))


class SelectiveCheckpointContext:
    """What a policy function gets first. `is_recompute`: whether the region runs again. The decision is taken in the forward pass and holds
    for every recomputation, so a policy sees False.
    """

    __slots__ = ("is_recompute",)

    def __init__(self, *, is_recompute: bool) -> None:
        self.is_recompute = is_recompute


def _replays(func) -> bool:
    """Whether an operation runs again whatever a policy says: one that writes to an argument, or gives a view of one, is meant for the
    tensors of that run, and a view costs nothing.
    """
    return func._schema.is_mutable or func.is_view


class _CachingTorchDispatchMode(TorchDispatchMode):
    """The forward pass: asks the policy about each operation, and keeps outputs."""

    _selective = True

    def __init__(self, policy_fn, storage: dict) -> None:
        super().__init__()
        self.policy_fn, self.storage, self.around = policy_fn, storage, None
        self.context = SelectiveCheckpointContext(is_recompute=False)

    def __enter__(self):
        self.around = _C._Around()
        self.storage.clear()
        return super().__enter__()

    def __exit__(self, *args) -> None:
        self.around = None
        super().__exit__(*args)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in SAC_IGNORED_OPS:
            return func(*args, **kwargs)
        policy = self.policy_fn(self.context, func, *args, **kwargs)
        if isinstance(policy, bool):
            policy = CheckpointPolicy.MUST_SAVE if policy else CheckpointPolicy.PREFER_RECOMPUTE
        if not isinstance(policy, CheckpointPolicy):
            raise TypeError(f"a checkpoint policy returns a CheckpointPolicy or a bool, not {type(policy).__name__} (for {func})")
        out = func(*args, **kwargs)
        kept = None
        if policy not in _RECOMPUTES and not _replays(func):
            kept = tree_map(lambda x: self.around.keep(x) if isinstance(x, _C.Tensor) else x, (out,))
        self.storage.setdefault(func, []).append(kept)
        return out


class _CachedTorchDispatchMode(TorchDispatchMode):
    """A recomputation: gives what was kept, the nth call of an operation what its nth call gave."""

    _selective = True

    def __init__(self, storage: dict) -> None:
        super().__init__()
        self.storage, self.calls = storage, []

    def __enter__(self):
        self.calls.append({})
        return super().__enter__()

    def __exit__(self, *args) -> None:
        self.calls.pop()
        super().__exit__(*args)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in SAC_IGNORED_OPS:
            return func(*args, **kwargs)
        calls = self.calls[-1]
        nth = calls.get(func, 0)
        calls[func] = nth + 1
        entries = self.storage.get(func, ())
        kept = entries[nth] if nth < len(entries) else None
        if kept is None:
            return func(*args, **kwargs)
        if func._draws:
            func(*args, **kwargs)  # moves the random state as the forward pass did
        return tree_map(lambda x: x.value() if isinstance(x, _C._Kept) else x, kept)[0]


SAC_IGNORED_OPS = {_C._overload("detach", "default")}


def create_selective_checkpoint_contexts(policy_fn_or_list, allow_cache_entry_mutation: bool = False):
    """The two contexts of selective checkpointing, for `context_fn` of `checkpoint`: outputs of some operations are kept, the others
    recomputed.

    `policy_fn_or_list`: a function `policy_fn(ctx, op, *args, **kwargs)` that gives a `CheckpointPolicy` for each
    operation of the forward pass, or a list of overloads whose outputs are kept, such as `[torch.ops.aten.mm.default]`.
    TypeError for anything else, ValueError for a list that holds other things.

    What is kept goes through the hooks around the region, and may be written: a recomputation gets the value as it was
    (`allow_cache_entry_mutation` changes nothing). Operations that write in place and views run again whatever the policy says.
    Backward may run any number of times.

    >>> import functools
    >>> import stowgrad as torch
    >>> from stowgrad.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    >>> contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    >>> x = torch.ones(2, 2, requires_grad=True)
    >>> checkpoint(lambda t: (t @ t).sin(), x, use_reentrant=False, context_fn=contexts).sum().backward()
    >>> x.grad
    tensor([[-1.6646, -1.6646],
            [-1.6646, -1.6646]])
    """
    if isinstance(policy_fn_or_list, list):
        for op in policy_fn_or_list:
            if not isinstance(op, _C.OpOverload):
                more = ""
                if isinstance(op, _C.OpOverloadPacket):
                    more = f" Name one overload of it, such as `torch.ops.{op}.default`."
                raise ValueError(f"Expected op in `op_list` to be an OpOverload but got: {op} of type {type(op)}.{more}")
        chosen = frozenset(policy_fn_or_list)

        def policy_fn(ctx, op, *args, **kwargs):
            return CheckpointPolicy.MUST_SAVE if op in chosen else CheckpointPolicy.PREFER_RECOMPUTE

    elif callable(policy_fn_or_list):
        policy_fn = policy_fn_or_list
    else:
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    storage: dict = {}
    return _CachingTorchDispatchMode(policy_fn, storage), _CachedTorchDispatchMode(storage)


def set_checkpoint_early_stop(enable: bool) -> _Setting:
    """Inside, checkpoints made stop (or do not stop) their recomputation at the last value that is needed.

    >>> import stowgrad as torch
    >>> from stowgrad.utils.checkpoint import checkpoint, set_checkpoint_early_stop
    >>> x = torch.ones(2, requires_grad=True)
    >>> with set_checkpoint_early_stop(False):
    ...     y = checkpoint(torch.sin, x, use_reentrant=False)
    """
    return _Setting(_C._set_checkpoint_early_stop, enable)


def set_checkpoint_debug_enabled(enabled: bool | None) -> _Setting:
    """Inside, checkpoints report the operations of both runs when these differ, whatever their own `debug` says
    (None: as that says).
    """
    return _Setting(_C._set_checkpoint_debug, enabled)


class _Noop:
    def __enter__(self):
        return None

    def __exit__(self, *args):
        return None


def noop_context_fn():
    """The default of `context_fn`: two contexts that do nothing."""
    return _Noop(), _Noop()


def _reentrant(function, args, kwargs, context_fn, debug: bool, preserve_rng_state: bool):
    """`checkpoint(.., use_reentrant=True)`."""
    if context_fn not in (None, noop_context_fn) or debug:
        raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    return CheckpointFunction.apply(function, preserve_rng_state, *args)


def _detached(inputs):
    out = []
    for x in inputs:
        if isinstance(x, _C.Tensor):
            requires = x.requires_grad
            x = x.detach()
            x.requires_grad = requires
        out.append(x)
    return tuple(out)


detach_variable = _detached


class CheckpointFunction(Function):
    """The old variant (`use_reentrant=True`): backward runs the function again under grad and calls backward inside.

    Its documented limits are errors: no `autograd.grad`, no `inputs=`, at least one output and one input must require grad.
    """

    @staticmethod
    def forward(ctx, run_function, preserve_rng_state, *args):
        if not any(isinstance(a, _C.Tensor) and a.requires_grad for a in args):
            from warnings import warn

            warn("None of the inputs have requires_grad=True. Gradients will be None", stacklevel=2)
        ctx.run_function = run_function
        ctx.preserve_rng_state = preserve_rng_state
        if preserve_rng_state:
            ctx.fwd_cpu_state = _C.get_rng_state()
        ctx.inputs, ctx.tensor_indices, tensors = [], [], []
        for i, a in enumerate(args):
            if isinstance(a, _C.Tensor):
                tensors.append(a)
                ctx.tensor_indices.append(i)
                ctx.inputs.append(None)
            else:
                ctx.inputs.append(a)
        ctx.save_for_backward(*tensors)
        return run_function(*args)

    @staticmethod
    def backward(ctx, *grads):
        if not _C._is_checkpoint_valid():
            raise RuntimeError(
                "When use_reentrant=True, checkpoint is incompatible with .grad() or passing an `inputs` parameter to "
                ".backward(). To resolve this error, you can either set use_reentrant=False, or call .backward() without "
                "passing the `inputs` argument."
            )
        from stowgrad.autograd import backward, enable_grad
        from stowgrad.random import fork_rng

        inputs = list(ctx.inputs)
        for i, t in zip(ctx.tensor_indices, ctx.saved_tensors, strict=True):
            inputs[i] = t
        with fork_rng(enabled=ctx.preserve_rng_state):
            if ctx.preserve_rng_state:
                _C.set_rng_state(ctx.fwd_cpu_state)
            detached = _detached(inputs)
            with enable_grad():
                outputs = ctx.run_function(*detached)
        if isinstance(outputs, _C.Tensor):
            outputs = (outputs,)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if isinstance(o, _C.Tensor) and o.requires_grad]
        if not pairs:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        backward([o for o, _ in pairs], [g for _, g in pairs])
        return (None, None, *(x.grad if isinstance(x, _C.Tensor) else None for x in detached))


def checkpoint_sequential(functions, segments: int, input, use_reentrant: bool | None = None, **kwargs):
    """Runs `functions` (a Sequential or a list) in `segments` parts, each but the last one checkpointed.

    >>> import stowgrad as torch
    >>> from stowgrad.utils.checkpoint import checkpoint_sequential
    >>> x = torch.ones(2, requires_grad=True)
    >>> checkpoint_sequential([torch.sin, torch.cos, torch.exp], 2, x, use_reentrant=False).sum().backward()
    """
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    children = getattr(functions, "children", None)
    functions = list(children()) if callable(children) else list(functions)

    def part(start, end):
        def run(x):
            for f in functions[start : end + 1]:
                x = f(x)
            return x

        return run

    size = len(functions) // segments
    end = -1
    for start in range(0, size * (segments - 1), size or 1):
        end = start + size - 1
        input = checkpoint(part(start, end), input, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    return part(end + 1, len(functions) - 1)(input)


def get_device_states(*args):
    """Random states of the devices of these tensors: none on the CPU, whose state a frame keeps itself."""
    return [], []


def set_device_states(devices, states, *, device_type=None) -> None:
    """Restores what `get_device_states` gave."""


class DefaultDeviceType:
    """Which device is meant where none is named."""

    _kind = "cuda"

    @staticmethod
    def set_device_type(device: str = "cuda") -> None:
        DefaultDeviceType._kind = device

    @staticmethod
    def get_device_type() -> str:
        return DefaultDeviceType._kind


class GraphExecGroup:
    """Inside, backward calls of this thread share what checkpoints compute again: a region runs once for the whole group, not once a call.

    The calls should go through different parts of the graph: a value that one of them has used is gone, and computed once more for the
    next (in torch that is an error). What is left over is let go of when the group ends. One inside another is a RuntimeError.

    >>> import stowgrad as torch
    >>> from stowgrad.utils.checkpoint import GraphExecGroup, checkpoint
    >>> runs = []
    >>> def split(t):
    ...     runs.append(1)
    ...     return t.sin().exp(), t.cos().exp()
    >>> a, b = checkpoint(split, torch.ones(2, requires_grad=True))
    >>> with GraphExecGroup():
    ...     a.sum().backward(retain_graph=True)
    ...     b.sum().backward()
    >>> len(runs)
    2
    """

    __slots__ = ()

    def __enter__(self):
        if not _C._open_backward_group():
            raise RuntimeError("GraphExecGroup contexts cannot be nested")
        _groups.group = self
        return self

    def __exit__(self, *args) -> None:
        _groups.group = None
        _C._close_backward_group()

    @classmethod
    def _get_current_group(cls):
        return _groups.group
