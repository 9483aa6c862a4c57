"""Automatic differentiation: `backward`, `grad`, and what belongs to them.

The walk itself is native (`_C._engine_run_backward`); here arguments are checked and gradients looked at.
Loaded with the package, so nothing here imports outside the core: what is rarely used (gradcheck, functional, ...)
loads when asked for.
"""

from __future__ import annotations

import sys

from stowgrad import _C
from stowgrad.autograd import anomaly_mode, function, grad_mode, graph, variable
from stowgrad.autograd.anomaly_mode import detect_anomaly, set_detect_anomaly
from stowgrad.autograd.function import Function
from stowgrad.autograd.grad_mode import (
    _force_original_view_tracking,
    _unsafe_preserve_version_counter,
    enable_grad,
    enforce_grad_layout_policy,
    inference_mode,
    is_multithreading_enabled,
    is_view_replay_enabled,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)
from stowgrad.autograd.graph import GradientEdge
from stowgrad.autograd.variable import Variable

__all__ = [
    "Function",
    "Variable",
    "_force_original_view_tracking",
    "_unsafe_preserve_version_counter",
    "anomaly_mode",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "enforce_grad_layout_policy",
    "function",
    "grad",
    "grad_mode",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_multithreading_enabled",
    "is_view_replay_enabled",
    "kineto_available",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
    "set_multithreading_enabled",
    "variable",
]

_Tensor = _C.Tensor
_run = _C._engine_run_backward


def _is_root(x) -> bool:
    return isinstance(x, (_Tensor, GradientEdge))


def _roots(x, what: str) -> tuple:
    if _is_root(x):
        return (x,)
    try:
        return tuple(x)
    except TypeError:
        raise TypeError(
            f"{what} must be a Tensor, a GradientEdge or a sequence of them, not {type(x).__name__}"
        ) from None


def _given_grads(outputs: tuple, grads, name: str, is_grads_batched: bool = False) -> tuple:
    """One gradient an output, checked. None stands for a one, which the engine makes for scalar outputs."""
    if grads is None:
        grads = (None,) * len(outputs)
    elif isinstance(grads, _Tensor):
        grads = (grads,)
    else:
        grads = tuple(grads)
        if len(grads) != len(outputs):
            raise RuntimeError(
                f"{name} holds {len(grads)} gradients for {len(outputs)} outputs: give one an output (or None)"
            )
    for i, out in enumerate(outputs):
        given = grads[i]
        if isinstance(out, _Tensor):
            if given is None:
                continue
            if not isinstance(given, _Tensor):
                raise TypeError(f"{name}[{i}] must be a Tensor or None, not {type(given).__name__}")
            if (given.shape[1:] if is_grads_batched else given.shape) != out.shape:
                raise RuntimeError(
                    f"Mismatch in shape: {name}[{i}] has a shape of {tuple(given.shape)} and output[{i}] has a shape "
                    f"of {tuple(out.shape)}" + (" after a batch dimension" if is_grads_batched else "")
                )
        elif type(out) is not GradientEdge:
            raise TypeError(f"output {i} must be a Tensor or a GradientEdge, not {type(out).__name__}")
        elif given is None:
            grads = (*grads[:i], _one_for(out, i), *grads[i + 1 :])
    return grads


def _one_for(edge: GradientEdge, i: int):
    """The gradient to start from at an edge without a given one."""
    known = getattr(edge.node, "_input_metadata", None)
    meta = known[edge.output_nr] if known else None
    if meta is None or _numel(meta.shape) != 1:
        raise RuntimeError(f"grad can be implicitly created only for scalar outputs; output {i} is the edge {edge!r}")
    return _C.ones(tuple(meta.shape), dtype=meta.dtype)


def _numel(shape) -> int:
    n = 1
    for size in shape:
        n *= int(size)
    return n


def backward(
    tensors,
    grad_tensors=None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables=None,
    inputs=None,
) -> None:
    """Adds the gradient of `tensors` (weighted by `grad_tensors`) to the `.grad` of the leaves, or of `inputs` only.

    A scalar needs no weight. RuntimeError where nothing requires grad, for a missing or mis-shaped weight, and for a
    graph that was freed (`retain_graph=True` keeps it; `create_graph=True` makes the gradients differentiable).

    >>> import stowgrad as torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> torch.autograd.backward((x * x).sum())
    >>> x.grad
    tensor([2., 4.])
    """
    if grad_variables is not None:
        import warnings

        warnings.warn("`grad_variables` is an old name: use `grad_tensors`", FutureWarning, stacklevel=2)
        if grad_tensors is not None:
            raise RuntimeError(
                "`grad_tensors` and `grad_variables` are one argument under two names: give only `grad_tensors`"
            )
        grad_tensors = grad_variables
    tensors = _roots(tensors, "tensors")
    if inputs is None:
        inputs = ()
    else:
        inputs = _roots(inputs, "inputs")
        if not inputs:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    grads = _given_grads(tensors, grad_tensors, "grad_tensors")
    if retain_graph is None:
        retain_graph = create_graph
    _run(tensors, grads, retain_graph, create_graph, inputs, True, True)


def grad(
    outputs,
    inputs,
    grad_outputs=None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple:
    """The gradients of `outputs` (weighted by `grad_outputs`) by each of `inputs`, as a tuple; `.grad` stays as it is.

    An input that the outputs do not depend on is a RuntimeError, None with `allow_unused`, zeros with
    `materialize_grads`. With `is_grads_batched` each of `grad_outputs` has one more dimension in front, and so has
    each result: one walk an entry.

    >>> import stowgrad as torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> torch.autograd.grad((x * x).sum(), x)
    (tensor([2., 4.]),)
    """
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    if allow_unused is None:
        allow_unused = materialize_grads
    outputs = _roots(outputs, "outputs")
    inputs = _roots(inputs, "inputs")
    if not inputs:
        raise RuntimeError("grad requires non-empty inputs: give the tensors to differentiate by")
    if not only_inputs:
        import warnings

        warnings.warn(
            "only_inputs is ignored and always True: use backward to accumulate into leaves",
            FutureWarning,
            stacklevel=2,
        )
    grads = _given_grads(outputs, grad_outputs, "grad_outputs", is_grads_batched)
    if retain_graph is None:
        retain_graph = create_graph
    if is_grads_batched:
        result = _batched(outputs, grads, retain_graph, create_graph, inputs, allow_unused)
    else:
        result = _run(outputs, grads, retain_graph, create_graph, inputs, allow_unused, False)
    if materialize_grads:
        for i, x in enumerate(inputs):
            if result[i] is None and not isinstance(x, _Tensor):
                raise RuntimeError("materialize_grads cannot make zeros for a GradientEdge: give the tensor instead")
        result = tuple(
            _C.zeros_like(x, requires_grad=create_graph) if g is None else g
            for g, x in zip(result, inputs, strict=True)
        )
    return result


def _batched(outputs, grads, retain_graph, create_graph, inputs, allow_unused) -> tuple:
    """`grad` for each entry of the weights' first dimension, stacked: no batching rules, so the graph is walked that
    often.
    """
    sizes = {g.shape[0] if g.dim() else None for g in grads if g is not None}
    if None in sizes or 0 in sizes:
        raise IndexError("is_grads_batched=True needs grad_outputs with a first dimension that holds an entry or more")
    if not sizes:
        raise RuntimeError("is_grads_batched=True: grad can be implicitly created only without a batch: give grad_outputs")
    if len(sizes) != 1:
        raise ValueError(f"is_grads_batched=True needs grad_outputs with one common first dimension, not {sizes}")
    n = sizes.pop()
    rows = []
    for i in range(n):
        row = tuple(None if g is None else g[i] for g in grads)
        rows.append(_run(outputs, row, retain_graph or i + 1 < n, create_graph, inputs, allow_unused, False))
    return tuple(None if column[0] is None else _C.stack(column) for column in zip(*rows, strict=True))


def kineto_available() -> bool:
    """Whether torch's profiler backend is there: never."""
    return False


_LAZY = {
    "GradcheckError": "gradcheck",
    "gradcheck": "gradcheck",
    "gradgradcheck": "gradcheck",
}


def __getattr__(name: str):
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module("stowgrad.autograd." + _LAZY[name]), name)
        globals()[name] = value
        return value
    if name in ("forward_ad", "functional", "profiler", "_functions"):
        import importlib

        return importlib.import_module("stowgrad.autograd." + name)
    if name == "SavedTensor":
        return _C._autograd.SavedTensor
    raise AttributeError(f"stowgrad.autograd has no {name!r}", name=name, obj=sys.modules[__name__])
