"""Rprop: steps that grow while the gradient keeps its sign. Source: Riedmiller and Braun 1993."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.optim.optimizer import PerParameter, _check_lr, _new_count, _number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["Rprop"]


class Rprop(PerParameter):
    """param -= sign(grad) * size: size times etas[1] while the sign stays, times etas[0], and no step, when it turns.

    Sizes start at lr and stay within step_sizes. ValueError unless 0 < etas[0] < 1 < etas[1].
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        _check_lr(lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, (shrink, grow), (least, most) = _number(group["lr"]), group["etas"], group["step_sizes"]

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if not state:
                state["step"] = _new_count()
                state["prev"] = _C.zeros_like(param)
                state["step_size"] = _C.full_like(grad, lr)
            before, size = state["prev"], state["step_size"]
            state["step"].add_(1)
            agree = grad.mul(before)
            turned = agree < 0
            factor = _C.ones_like(agree).masked_fill_(agree > 0, grow).masked_fill_(turned, shrink)
            size.mul_(factor).clamp_(least, most)
            grad = grad.masked_fill(turned, 0)  # where the sign turned there is no step, now or by comparison later
            param.addcmul_(grad.sign(), size, value=-1)
            before.copy_(grad)

        return rule
