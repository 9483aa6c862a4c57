"""Adagrad: steps scaled by the sum of squared gradients. Source: Duchi et al. 2011."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.optim.optimizer import (
    PerParameter,
    _check_lr,
    _check_modes,
    _check_not_negative,
    _new_count,
    _number,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["Adagrad"]


class Adagrad(PerParameter):
    """param -= lr / (1 + (t - 1) lr_decay) * grad / (sqrt(sum of grad**2) + eps). ValueError for a negative option."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        _check_lr(lr)
        _check_not_negative(
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            epsilon=eps,
        )
        _check_modes(foreach, fused, differentiable)
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)
        # The sums exist before the first step, so that they can be shared between processes.
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param] = self._first_state(param, group)

    @staticmethod
    def _first_state(param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return {
            "step": _new_count(),
            "sum": _C.full_like(param, group["initial_accumulator_value"], requires_grad=False),
        }

    def share_memory(self) -> None:
        """Moves the sums to shared memory."""
        for state in self.state.values():
            state["sum"].share_memory_()

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, lr_decay, decay, eps = _number(group["lr"]), group["lr_decay"], group["weight_decay"], group["eps"]

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if not state:  # of a group that was added later
                state.update(self._first_state(param, group))
            count, total = state["step"], state["sum"]
            count.add_(1)
            if decay != 0:
                grad = grad.add(param, alpha=decay)
            total.addcmul_(grad, grad, value=1)
            scale = total.sqrt().add(eps)
            param.addcdiv_(grad, scale, value=-lr / (1 + (count.item() - 1) * lr_decay))

        return rule
