"""Adadelta: steps in the units of the parameter. Source: Zeiler 2012."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.optim.optimizer import PerParameter, _check_lr, _check_not_negative, _new_count, _number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["Adadelta"]


class Adadelta(PerParameter):
    """param -= lr * d, d = grad * sqrt(u + eps) / sqrt(v + eps), v and u the running means of grad**2 and d**2.

    ValueError for a negative option or a rho outside [0, 1].
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        _check_lr(lr)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        _check_not_negative(epsilon=eps, weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, rho, eps, decay = _number(group["lr"]), group["rho"], group["eps"], group["weight_decay"]

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if not state:
                state["step"] = _new_count()
                state["square_avg"] = _C.zeros_like(param)
                state["acc_delta"] = _C.zeros_like(param)
            square, moved = state["square_avg"], state["acc_delta"]
            state["step"].add_(1)
            if decay != 0:
                grad = grad.add(param, alpha=decay)
            square.mul_(rho).addcmul_(grad, grad, value=1 - rho)
            delta = moved.add(eps).sqrt() / square.add(eps).sqrt() * grad
            moved.mul_(rho).addcmul_(delta, delta, value=1 - rho)
            param.add_(delta, alpha=-lr)

        return rule
