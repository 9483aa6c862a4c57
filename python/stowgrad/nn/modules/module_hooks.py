"""The wiring of a module's backward hooks around its forward.

What is known here: autograd Functions, nodes and their hooks. What must not be known here: `Module`.

Invariant: gradients that pass between the output side and the input side of a module are held only while a backward is
between the two.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad.autograd import Function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["BackwardHook", "BackwardHookFunction"]

Tensor = _C.Tensor


class BackwardHookFunction(Function):
    """The identity on any number of tensors: its node is the place where module gradients are seen and changed."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.mark_non_differentiable(*[t for t in tensors if not t.requires_grad])
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return grads


class BackwardHook:
    """Calls a module's full backward hooks and backward pre-hooks for one forward call.

    `setup_input_hook(args)` and `setup_output_hook(result)` give the same values, passed through a node of their own.
    The output's node collects the gradients of the outputs and runs the pre-hooks; the inputs' node runs the hooks with
    both. When no input requires a gradient the hooks run at the output, with None for each input.
    """

    def __init__(self, module: Any, user_hooks: list[Callable], user_pre_hooks: list[Callable]) -> None:
        self.module, self.user_hooks, self.user_pre_hooks = module, user_hooks, user_pre_hooks
        self.grad_outputs: tuple[Any, ...] | None = None
        self.n_inputs = self.n_outputs = -1
        self.input_tensors_index: list[int] | None = None
        self.output_tensors_index: list[int] | None = None

    def setup_input_hook(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Watches the gradients of the tensors among `args`."""
        passed, self.input_tensors_index = _through_a_node(self._at_inputs, args)
        self.n_inputs = len(args)
        return passed

    def setup_output_hook(self, result: Any) -> Any:
        """Watches the gradients of `result`, a tensor or a tuple."""
        if isinstance(result, tuple):
            self.n_outputs = len(result)
            passed, self.output_tensors_index = _through_a_node(self._at_outputs, result)
            return passed
        self.n_outputs = 1
        passed, self.output_tensors_index = _through_a_node(self._at_outputs, (result,))
        return passed[0]

    def _at_outputs(self, _: Any, grad_output: tuple[Any, ...]) -> tuple[Any, ...]:
        grads = _spread(self.output_tensors_index, grad_output, self.n_outputs)
        for hook in self.user_pre_hooks:
            grads = _replaced(grads, hook(self.module, grads), "Backward pre hook", "grad_output")
        self.grad_outputs = grads
        if self.input_tensors_index is None:
            for hook in self.user_hooks:
                given = hook(self.module, (None,) * self.n_inputs, grads)
                if given is not None and not (isinstance(given, tuple) and all(g is None for g in given)):
                    raise RuntimeError(
                        f"backward hook of {type(self.module).__name__}: no input requires a gradient, "
                        "so there is none "
                        "to replace; the hook should always return None or None for all gradients"
                    )
            self.grad_outputs = None
        return tuple(grads[i] for i in self.output_tensors_index)

    def _at_inputs(self, grad_input: tuple[Any, ...], _: Any) -> tuple[Any, ...] | None:
        if self.grad_outputs is None:
            # A gradient that came around the outputs, as in a double backward: it is not the module's.
            return None
        grads = _spread(self.input_tensors_index, grad_input, self.n_inputs)
        for hook in self.user_hooks:
            grads = _replaced(grads, hook(self.module, grads, self.grad_outputs), "Backward hook", "grad_input")
        self.grad_outputs = None
        return tuple(grads[i] for i in self.input_tensors_index)


def _spread(index: Any, values: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """`values` at the places of `index` in a tuple of `size`, None elsewhere."""
    spread: list[Any] = [None] * size
    for i, value in zip(index, values, strict=False):
        spread[i] = value
    return tuple(spread)


def _replaced(grads: tuple[Any, ...], given: Any, what: str, name: str) -> tuple[Any, ...]:
    """What a hook gave in place of `grads`, checked for its length; `grads` when it gave None."""
    if given is None:
        return grads
    if not isinstance(given, (tuple, list)):
        given = (given,)
    if len(given) != len(grads):
        raise RuntimeError(f"{what} returned an invalid number of {name}, got {len(given)}, but expected {len(grads)}")
    return tuple(given)


def _through_a_node(hook: Callable, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int] | None]:
    """`args` with its tensors passed through one identity node that calls `hook`, and the places of those tensors.

    When no gradient will flow the arguments come back as they are, with None for the places.
    """
    index = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
    if not (_C.is_grad_enabled() and any(args[i].requires_grad for i in index)):
        return args, None
    passed = BackwardHookFunction.apply(*[args[i] for i in index])
    nodes = [t.grad_fn for t in passed if t.grad_fn is not None]
    nodes[0].register_hook(hook)
    spread = list(args)
    for i, value in zip(index, passed, strict=False):
        spread[i] = value
    return (tuple(spread) if type(args) is tuple else type(args)(*spread)), index
