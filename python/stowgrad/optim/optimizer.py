"""`Optimizer`: groups of parameters, each with its options, and what is remembered of every parameter.

What is known here: groups, state, their dictionaries, hooks. What must not be known here: any rule of descent, but for
the shape that all have: `PerParameter` walks the groups and hands every parameter that has a gradient to a rule.

Invariants: a parameter stands in one group alone; writes happen in place and record nothing, unless `differentiable`; a
state dictionary names parameters by their place, in the order of the groups.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import OrderedDict, defaultdict
from copy import deepcopy

import stowgrad
from stowgrad import _C
from stowgrad.utils.hooks import RemovableHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["Optimizer", "register_optimizer_step_post_hook", "register_optimizer_step_pre_hook"]

Tensor = _C.Tensor

_global_optimizer_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_optimizer_post_hooks: OrderedDict[int, Callable] = OrderedDict()


class _Required:
    """Stands for an option without a default."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


def register_optimizer_step_pre_hook(hook: Callable) -> RemovableHandle:
    """Calls `hook(optimizer, args, kwargs)` before the step of every optimizer; a pair (args, kwargs) replaces them."""
    return _register(_global_optimizer_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Callable) -> RemovableHandle:
    """Calls `hook(optimizer, args, kwargs)` after the step of every optimizer."""
    return _register(_global_optimizer_post_hooks, hook)


def _register(table: OrderedDict, hook: Callable, prepend: bool = False) -> RemovableHandle:
    handle = RemovableHandle(table)
    table[handle.id] = hook
    if prepend:
        table.move_to_end(handle.id, last=False)
    return handle


_HOOK_TABLES = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def _with_hooks(step: Callable) -> Callable:
    """A `step` that runs the hooks around itself. The arguments that hooks see begin with the optimizer."""

    @functools.wraps(step)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        self = args[0]
        self._opt_called = True
        if self._optimizer_step_pre_hooks or _global_optimizer_pre_hooks:
            for hook in (*_global_optimizer_pre_hooks.values(), *self._optimizer_step_pre_hooks.values()):
                given = hook(self, args, kwargs)
                if given is None:
                    continue
                if not (isinstance(given, tuple) and len(given) == 2):
                    raise RuntimeError(
                        f"step pre-hook {hook!r} must return None or a tuple of (new_args, new_kwargs), "
                        f"but got {given!r}."
                    )
                args, kwargs = given
        out = step(*args, **kwargs)
        if self._optimizer_step_post_hooks or _global_optimizer_post_hooks:
            for hook in (*self._optimizer_step_post_hooks.values(), *_global_optimizer_post_hooks.values()):
                hook(self, args, kwargs)
        return out

    stepped.hooked = True
    return stepped


# What a state holds as one number, in the dtype of `_get_scalar_dtype`.
_COUNTS = frozenset(["step", "mu_product", "eta", "mu"])


class Optimizer:
    """Base class of all optimizers.

    `params` is an iterable of tensors, of (name, tensor) pairs, or of dicts that each hold "params" and options of
    their own; `defaults` are the options of those that do not. ValueError for no parameters, for one that is no leaf,
    or one in two groups; TypeError for what is no tensor.

    >>> import stowgrad as torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> opt = torch.optim.SGD([w], lr=0.5)
    >>> w.sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.5, 0.5]
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        for name in _HOOK_TABLES:
            setattr(self, name, OrderedDict())
        self._patch_step_function()
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but "
                f"got {type(params).__name__}"
            )
        self.state: defaultdict[Any, Any] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def _patch_step_function(self) -> None:
        """Puts the hooks around the class's `step`, once a class that defines one."""
        cls = type(self)
        if not getattr(cls.step, "hooked", None):
            cls.step = _with_hooks(cls.step)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Moves every parameter once; `closure`, if given, computes the loss anew and its value is returned."""
        raise NotImplementedError(f"{type(self).__name__}.step is not defined")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradient of every parameter, or fills it with zeros when `set_to_none=False`."""
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none:
                    param.grad = None
                    continue
                grad = param.grad
                if grad is not None:
                    if grad.grad_fn is not None:
                        grad.detach_()
                    else:
                        grad.requires_grad_(False)
                    grad.zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a dict of "params" and options; options it lacks come from the defaults.

        TypeError for what is no dict, tensor or ordered collection; ValueError for a parameter that is no leaf, that
        another group holds, or for an option that is required and missing.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, Tensor):
            params = [params]
        elif isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets "
                "will change between runs: use a list"
            )
        else:
            params = list(params)
        if params and all(isinstance(p, tuple) for p in params):
            param_group["param_names"] = [name for name, _ in params]
            params = [param for _, param in params]
        param_group["params"] = params
        for param in params:
            if not isinstance(param, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(param).__name__}")
            if not self.defaults.get("differentiable", None) and not (param.is_leaf or param.retains_grad):
                raise ValueError(
                    f"can't optimize a non-leaf Tensor: one of shape {tuple(param.shape)} was computed by "
                    f"{param.grad_fn.name()}; make it a leaf by detach().requires_grad_()"
                )
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
            param_group.setdefault(name, default)
        if len(params) != len(set(params)):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this will cause an error",
                stacklevel=3,
            )
        known = set(itertools.chain.from_iterable(group["params"] for group in self.param_groups))
        if not known.isdisjoint(params):
            raise ValueError("some parameters appear in more than one parameter group")
        if self.param_groups and ("param_names" in param_group) != ("param_names" in self.param_groups[0]):
            raise ValueError("all optimizer param groups should be with/without names, but some are and some are not")
        self.param_groups.append(param_group)

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """{"state": what is remembered, by the place of the parameter; "param_groups": the options, with places for
        parameters}.
        """
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        places: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for param in group["params"]:
                places.setdefault(id(param), len(places))
            packed = {name: value for name, value in group.items() if name != "params"}
            packed["params"] = [places[id(param)] for param in group["params"]]
            groups.append(packed)
        state = {(places[id(k)] if isinstance(k, Tensor) else k): v for k, v in self.state.items()}
        found: dict[str, Any] = {"state": state, "param_groups": groups}
        for hook in self._optimizer_state_dict_post_hooks.values():
            given = hook(self, found)
            if given is not None:
                found = given
        return found

    @staticmethod
    def _process_value_according_to_param_policy(
        param: Tensor, value: Tensor, param_id: int, param_groups: list[dict[str, Any]], key: Any = None
    ) -> Tensor:
        """A loaded value in the dtype of its parameter; counts keep theirs, or a resumed run would round anew."""
        if key in _COUNTS:
            return value
        if param.is_floating_point():
            return value.to(dtype=param.dtype, device=param.device)
        return value.to(device=param.device)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the options and state of another optimizer of the same groups. ValueError when the groups differ.

        Values are cast to the dtype of their parameter.
        """
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            given = hook(self, state_dict)
            if given is not None:
                state_dict = given
        ours, theirs = self.param_groups, deepcopy(state_dict["param_groups"])
        if len(ours) != len(theirs):
            raise ValueError(
                f"loaded state dict has a different number of parameter groups: {len(theirs)}, not {len(ours)}"
            )
        for mine, given in zip(ours, theirs, strict=False):
            if len(mine["params"]) != len(given["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of optimizer's group: "
                    f"{len(given['params'])} parameters, not {len(mine['params'])}"
                )
        at = dict(
            zip(
                itertools.chain.from_iterable(group["params"] for group in theirs),
                itertools.chain.from_iterable(group["params"] for group in ours),
                strict=False,
            )
        )

        def cast(param: Tensor, value: Any, place: int, key: Any = None) -> Any:
            if isinstance(value, Tensor):
                return self._process_value_according_to_param_policy(param, value, place, theirs, key)
            if isinstance(value, dict):
                return {k: cast(param, v, place, k) for k, v in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(cast(param, v, place) for v in value)
            return value

        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, value in state_dict["state"].items():
            if key in at:
                state[at[key]] = cast(at[key], value, key)
            else:
                state[key] = value
        groups = []
        for mine, given in zip(ours, theirs, strict=False):
            given["params"] = mine["params"]
            if "param_names" in mine and "param_names" not in given:
                given["param_names"] = mine["param_names"]
            groups.append(given)
        self.__setstate__({"state": state, "param_groups": groups})
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _HOOK_TABLES:
            self.__dict__.setdefault(name, OrderedDict())
        # An optimizer pickled by an older version lacks options that came later.
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)
        self._patch_step_function()

    # ---- hooks ----

    def register_step_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Calls `hook(optimizer, args, kwargs)` before `step`; a pair (args, kwargs) replaces them."""
        return _register(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable) -> RemovableHandle:
        """Calls `hook(optimizer, args, kwargs)` after `step`."""
        return _register(self._optimizer_step_post_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Calls `hook(optimizer)` before `state_dict`."""
        return _register(self._optimizer_state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Calls `hook(optimizer, state_dict)` after `state_dict`; a value other than None replaces it."""
        return _register(self._optimizer_state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Calls `hook(optimizer, state_dict)` before `load_state_dict`; a value other than None replaces it."""
        return _register(self._optimizer_load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Calls `hook(optimizer)` after `load_state_dict`."""
        return _register(self._optimizer_load_state_dict_post_hooks, hook, prepend)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return "\n".join([*lines, ")"])


# ---- what the optimizers here share ----


def _number(value: Any) -> float:
    """An option as a number; a tensor of one element counts as one."""
    return value.item() if isinstance(value, Tensor) else value


def _check_lr(lr: Any) -> None:
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"Tensor lr must be 1-element; got shape {tuple(lr.shape)}")
    elif not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")


def _check_not_negative(**options: float) -> None:
    for name, value in options.items():
        if not _number(value) >= 0.0:
            raise ValueError(f"Invalid {name} value: {value}")


def _check_betas(betas: tuple[float, float]) -> None:
    for i, beta in enumerate(betas):
        if not 0.0 <= _number(beta) < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")


def _check_modes(foreach: bool | None, fused: bool | None, differentiable: bool) -> None:
    if fused and differentiable:
        raise RuntimeError("`fused` does not support `differentiable`")
    if fused and foreach:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")


def _get_scalar_dtype(is_fused: bool | None = None) -> Any:
    """The dtype of counts that are kept as tensors: float64 when that is the default, float32 otherwise."""
    return _C.float64 if stowgrad.get_default_dtype() == _C.float64 else _C.float32


def _new_count(start: float = 0.0) -> Tensor:
    """A number that lives in the state as a 0-d tensor, as files have it."""
    return _C.full((), start, dtype=_get_scalar_dtype())


class PerParameter(Optimizer):
    """An optimizer whose rule looks at one parameter at a time.

    A subclass defines `_rule(group)`: a function of (param, grad, state) that reads the group's options once and moves
    the parameter. `grad` has its sign turned when the group maximizes, unless the rule does that itself (`_turns_sign`
    False). A group that needs no memory (`_remembers`) has None for its state, so that nothing of it stands in the
    state dictionary.
    """

    _turns_sign = True

    def _remembers(self, group: dict[str, Any]) -> bool:
        return True

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        raise NotImplementedError

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Moves every parameter that has a gradient; `closure` computes the loss anew, its value is returned."""
        loss = None
        if closure is not None:
            with stowgrad.enable_grad():
                loss = closure()
        recording = _C.is_grad_enabled()
        _C._set_grad_enabled(bool(self.defaults.get("differentiable", False)))
        try:
            remembered = self.state
            for group in self.param_groups:
                rule = self._rule(group)
                turn = self._turns_sign and group.get("maximize", False)
                remembers = self._remembers(group)
                for param in group["params"]:
                    grad = param.grad
                    if grad is not None:
                        rule(param, -grad if turn else grad, remembered[param] if remembers else None)
        finally:
            _C._set_grad_enabled(recording)
        return loss
