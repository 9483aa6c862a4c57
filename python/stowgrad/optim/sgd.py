"""Stochastic gradient descent, with momentum. Sources: Polyak 1964; Nesterov 1983; Sutskever et al. 2013."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.optim.optimizer import PerParameter, _check_lr, _check_modes, _check_not_negative, _number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["SGD"]

# One pass over memory for one parameter; None in a build without it.
_fused = getattr(_C, "_fused_sgd_step", None)
_FUSED_DTYPES = (_C.float32, _C.float64)


class SGD(PerParameter):
    """param -= lr * buf, where buf = momentum * buf + (1 - dampening) * grad, and buf starts as the first gradient.

    weight_decay adds weight_decay * param to the gradient; nesterov looks one step ahead; maximize goes uphill.
    ValueError for a negative option, or nesterov without momentum or with dampening.

    >>> import stowgrad as torch
    >>> w = torch.tensor([1.0], requires_grad=True)
    >>> opt = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    >>> for _ in range(2):
    ...     opt.zero_grad()
    ...     (w * 2).sum().backward()
    ...     opt.step()
    >>> round(w.item(), 4)
    0.42
    """

    _turns_sign = False  # the fused step turns it itself

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        _check_lr(lr)
        _check_not_negative(momentum=momentum, weight_decay=weight_decay)
        _check_modes(foreach, fused, differentiable)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def _remembers(self, group: dict[str, Any]) -> bool:
        return group["momentum"] != 0

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, decay = _number(group["lr"]), _number(group["weight_decay"])
        momentum, dampening = group["momentum"], group["dampening"]
        nesterov, maximize = group["nesterov"], group["maximize"]
        fused = None if group["differentiable"] else _fused

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any] | None) -> None:
            buf = state.get("momentum_buffer") if state is not None else None
            if fused is not None and param.dtype in _FUSED_DTYPES and param.dtype == grad.dtype and param.is_cpu:
                first = state is not None and buf is None
                if first:
                    buf = state["momentum_buffer"] = _C.empty_like(grad)
                fused(param, grad, buf, first, lr, momentum, dampening, decay, nesterov, maximize)
                return
            if maximize:
                grad = -grad
            if decay != 0:
                grad = grad.add(param, alpha=decay)
            if state is not None:
                if buf is None:
                    buf = state["momentum_buffer"] = grad.detach().clone()
                else:
                    buf.mul_(momentum).add_(grad, alpha=1 - dampening)
                grad = grad.add(buf, alpha=momentum) if nesterov else buf
            param.add_(grad, alpha=-lr)

        return rule
