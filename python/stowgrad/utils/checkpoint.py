"""Checkpointing: a region's saved values are forgotten and computed again for backward.

The frames are native (`_C._checkpoint`): what a frame keeps, when it runs again and what is compared is decided there. Here are torch's
signatures, the reentrant variant, and selective checkpointing. Invariant: a context entered here is left on every way out.
"""

from __future__ import annotations

from _thread import _local

from stowgrad import _C
from stowgrad._C import CheckpointError
from stowgrad.autograd.function import Function

__all__ = [
    "CheckpointError",
    "CheckpointFunction",
    "DefaultDeviceType",
    "GraphExecGroup",
    "checkpoint",
    "checkpoint_sequential",
    "get_device_states",
    "noop_context_fn",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
    "set_device_states",
]

_DEFAULT_DETERMINISM_MODE = "default"


class _Settings(_local):
    """What the contexts below set, for one thread."""

    early_stop: bool | None = None
    debug: bool | None = None


_settings = _Settings()


class _Setting:
    """A setting of this thread for the length of a `with` block."""

    __slots__ = ("name", "old", "value")

    def __init__(self, name: str, value):
        self.name, self.value = name, value

    def __enter__(self) -> None:
        self.old = getattr(_settings, self.name)
        setattr(_settings, self.name, self.value)

    def __exit__(self, *args) -> None:
        setattr(_settings, self.name, self.old)


def set_checkpoint_early_stop(enable: bool) -> _Setting:
    """Inside, checkpoints made stop (or do not stop) their recomputation at the last value that is needed.

    >>> import stowgrad as torch
    >>> from stowgrad.utils.checkpoint import checkpoint, set_checkpoint_early_stop
    >>> x = torch.ones(2, requires_grad=True)
    >>> with set_checkpoint_early_stop(False):
    ...     y = checkpoint(torch.sin, x, use_reentrant=False)
    """
    return _Setting("early_stop", enable)


def set_checkpoint_debug_enabled(enabled: bool | None) -> _Setting:
    """Inside, checkpoints report the operations of both runs when these differ, whatever their own `debug` says
    (None: as that says).
    """
    return _Setting("debug", enabled)


class _Noop:
    def __enter__(self):
        return None

    def __exit__(self, *args):
        return None


def noop_context_fn():
    """The default of `context_fn`: two contexts that do nothing."""
    return _Noop(), _Noop()


def checkpoint(
    function,
    *args,
    use_reentrant: bool | None = None,
    context_fn=noop_context_fn,
    determinism_check: str = _DEFAULT_DETERMINISM_MODE,
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs,
):
    """Runs `function(*args, **kwargs)`; what it saves for backward is forgotten, and computed again when backward needs it.

    Any depth of nesting, containers and keywords with tensors, closures and modules. The recomputation stops at the last value needed,
    draws the same random numbers (`preserve_rng_state`), and is compared with the forward pass: operations, shapes and dtypes
    (`determinism_check="default"`), the values too (`"values"`), or nothing (`"none"`); a difference is a CheckpointError. So is a write,
    between forward and backward, to a tensor that the function read from outside. `context_fn()` gives two contexts,
    for the forward pass and
    for recomputations. `debug=True` makes errors list the operations of both runs. `use_reentrant=None` means False.

    >>> import stowgrad as torch
    >>> from stowgrad.utils.checkpoint import checkpoint
    >>> x = torch.tensor([0.5], requires_grad=True)
    >>> checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False).backward()
    >>> x.grad
    tensor([1.4174])
    """
    if use_reentrant:
        if context_fn is not noop_context_fn or debug:
            raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    return _C._checkpoint(
        function,
        args,
        kwargs,
        determinism_check,
        preserve_rng_state,
        debug if _settings.debug is None else _settings.debug,
        early_stop if _settings.early_stop is None else _settings.early_stop,
        None if context_fn is noop_context_fn else context_fn,
    )


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
    """Backward calls inside one group may share what a checkpoint recomputed, in torch. Here each call recomputes for itself, which is
    right for any number of calls; the context exists so that programs that open one run.
    """

    def __enter__(self):
        if GraphExecGroup._current is not None:
            raise RuntimeError("GraphExecGroup contexts cannot be nested")
        GraphExecGroup._current = self
        return self

    def __exit__(self, *args):
        GraphExecGroup._current = None

    _current = None

    @classmethod
    def _get_current_group(cls):
        return cls._current
