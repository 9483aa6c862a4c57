"""Adamax: Adam by the largest gradient instead of the mean square. Source: Kingma and Ba 2014."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.optim.optimizer import (
    PerParameter,
    _check_betas,
    _check_lr,
    _check_not_negative,
    _new_count,
    _number,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["Adamax"]


class Adamax(PerParameter):
    """param -= lr / (1 - beta1**t) * m / u, m the running mean of grad, u = max(beta2 * u, |grad| + eps).

    ValueError for a negative option or a beta outside [0, 1).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        _check_lr(lr)
        _check_not_negative(epsilon=eps, weight_decay=weight_decay)
        _check_betas(betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, eps, decay = _number(group["lr"]), group["eps"], group["weight_decay"]
        beta1, beta2 = group["betas"]

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if not state:
                state["step"] = _new_count()
                state["exp_avg"] = _C.zeros_like(param)
                state["exp_inf"] = _C.zeros_like(param)
            count, mean, most = state["step"], state["exp_avg"], state["exp_inf"]
            count.add_(1)
            if decay != 0:
                grad = grad.add(param, alpha=decay)
            mean.lerp_(grad, 1 - beta1)
            most.copy_(_C.maximum(most * beta2, grad.abs().add_(eps)))
            param.addcdiv_(mean, most, value=-lr / (1 - beta1 ** count.item()))

        return rule
