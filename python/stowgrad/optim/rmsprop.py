"""RMSprop: steps scaled by the running mean of the squared gradient. Sources: Hinton 2012; centered: Graves 2013."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.optim.optimizer import PerParameter, _check_lr, _check_not_negative, _new_count, _number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["RMSprop"]


class RMSprop(PerParameter):
    """param -= lr * grad / (sqrt(v) + eps), v the running mean of grad**2, less the squared mean of grad when
    `centered`.

    ValueError for a negative option.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        _check_lr(lr)
        _check_not_negative(epsilon=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, alpha, eps = _number(group["lr"]), group["alpha"], group["eps"]
        decay, momentum, centered = group["weight_decay"], group["momentum"], group["centered"]

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if not state:
                state["step"] = _new_count()
                state["square_avg"] = _C.zeros_like(param)
                if momentum > 0:
                    state["momentum_buffer"] = _C.zeros_like(param)
                if centered:
                    state["grad_avg"] = _C.zeros_like(param)
            state["step"].add_(1)
            if decay != 0:
                grad = grad.add(param, alpha=decay)
            square = state["square_avg"]
            square.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
            if centered:
                mean = state["grad_avg"]
                mean.lerp_(grad, 1 - alpha)
                scale = square.addcmul(mean, mean, value=-1).sqrt().add(eps)
            else:
                scale = square.sqrt().add(eps)
            if momentum > 0:
                buf = state["momentum_buffer"]
                buf.mul_(momentum).addcdiv_(grad, scale)
                param.add_(buf, alpha=-lr)
            else:
                param.addcdiv_(grad, scale, value=-lr)

        return rule
