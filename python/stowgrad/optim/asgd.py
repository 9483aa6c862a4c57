"""ASGD: gradient descent that keeps the mean of where it has been. Source: Polyak and Juditsky 1992."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.optim.optimizer import PerParameter, _check_lr, _check_not_negative, _new_count, _number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["ASGD"]


class ASGD(PerParameter):
    """param = (1 - lambd * eta) * param - eta * grad, eta falling as (1 + lambd * lr * t) ** -alpha.

    state["ax"] is the mean of the parameter from step t0 on. ValueError for a negative lr or weight_decay.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        _check_lr(lr)
        _check_not_negative(weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, lambd, alpha = _number(group["lr"]), group["lambd"], group["alpha"]
        t0, decay = group["t0"], group["weight_decay"]

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if not state:
                state["step"] = _new_count()
                state["eta"] = _new_count(lr)
                state["mu"] = _new_count(1.0)
                state["ax"] = _C.zeros_like(param)
            count, eta, mu, mean = state["step"], state["eta"], state["mu"], state["ax"]
            count.add_(1)
            step = count.item()
            if decay != 0:
                grad = grad.add(param, alpha=decay)
            size = eta.item()
            param.mul_(1 - lambd * size)
            param.add_(grad, alpha=-size)
            weight = mu.item()
            if weight != 1:
                mean.add_(param.sub(mean).mul_(weight))
            else:
                mean.copy_(param)
            eta.fill_(lr / ((1 + lambd * lr * step) ** alpha))
            mu.fill_(1 / max(1, step - t0))

        return rule
