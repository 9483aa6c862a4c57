"""RAdam: Adam that waits until its mean of squares can be trusted. Source: Liu et al. 2019."""

from __future__ import annotations

import math

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

__all__ = ["RAdam"]


class RAdam(PerParameter):
    """Adam whose step is scaled by the variance that its mean of squares has after so few steps; plain momentum before.

    ValueError for a negative option or a beta outside [0, 1).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        _check_lr(lr)
        _check_not_negative(epsilon=eps, weight_decay=weight_decay)
        _check_betas(betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, eps, decay = _number(group["lr"]), group["eps"], group["weight_decay"]
        beta1, beta2 = group["betas"]
        decoupled = group["decoupled_weight_decay"]
        # The length of the mean of squares, were it to run for ever.
        rho_inf = 2 / (1 - beta2) - 1

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if not state:
                state["step"] = _new_count()
                state["exp_avg"] = _C.zeros_like(param)
                state["exp_avg_sq"] = _C.zeros_like(param)
            count, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
            count.add_(1)
            step = count.item()
            if decay != 0:
                if decoupled:
                    param.mul_(1 - lr * decay)
                else:
                    grad = grad.add(param, alpha=decay)
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            correction1, correction2 = 1 - beta1**step, 1 - beta2**step
            rho = rho_inf - 2 * step * (beta2**step) / correction2
            if rho > 5.0:
                rect = math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
                factor = lr / correction1 * rect * math.sqrt(correction2)
                param.addcdiv_(mean, square.sqrt().add(eps), value=-factor)
            else:
                param.add_(mean, alpha=-lr / correction1)

        return rule
