"""NAdam: Adam with Nesterov's momentum. Source: Dozat 2016."""

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

__all__ = ["NAdam"]


class NAdam(PerParameter):
    """Adam that looks one step of its momentum ahead; the momentum grows with the steps, at the pace of momentum_decay.

    ValueError for a negative option or a beta outside [0, 1).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        _check_lr(lr)
        _check_not_negative(epsilon=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        _check_betas(betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, eps, decay = _number(group["lr"]), group["eps"], group["weight_decay"]
        beta1, beta2 = group["betas"]
        pace, decoupled = group["momentum_decay"], group["decoupled_weight_decay"]

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if not state:
                state["step"] = _new_count()
                state["mu_product"] = _new_count(1.0)
                state["exp_avg"] = _C.zeros_like(param)
                state["exp_avg_sq"] = _C.zeros_like(param)
            count, product = state["step"], state["mu_product"]
            mean, square = state["exp_avg"], state["exp_avg_sq"]
            count.add_(1)
            step = count.item()
            if decay != 0:
                if decoupled:
                    param.mul_(1 - lr * decay)
                else:
                    grad = grad.add(param, alpha=decay)
            mu = beta1 * (1.0 - 0.5 * (0.96 ** (step * pace)))
            mu_next = beta1 * (1.0 - 0.5 * (0.96 ** ((step + 1) * pace)))
            product.mul_(mu)
            so_far = product.item()
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            scale = square.div(1 - beta2**step).sqrt().add(eps)
            param.addcdiv_(grad, scale, value=-lr * (1.0 - mu) / (1.0 - so_far))
            param.addcdiv_(mean, scale, value=-lr * mu_next / (1.0 - so_far * mu_next))

        return rule
