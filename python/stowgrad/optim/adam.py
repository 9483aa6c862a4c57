"""Adam: steps scaled by running means of the gradient and of its square. Sources: Kingma and Ba 2014; AMSGrad: Reddi
et al. 2018.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad.optim.optimizer import (
    PerParameter,
    _check_betas,
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

__all__ = ["Adam"]

# One pass over memory for one parameter; None in a build without it.
_fused = getattr(_C, "_fused_adam_step", None)
_FUSED_DTYPES = (_C.float32, _C.float64)


class Adam(PerParameter):
    """param -= lr * m / (sqrt(v) + eps), m and v the bias-corrected running means of grad and grad**2.

    weight_decay adds weight_decay * param to the gradient, or, with decoupled_weight_decay, shrinks the parameter by lr
    times that. amsgrad divides by the largest v so far. ValueError for a negative option or a beta outside [0, 1).

    >>> import stowgrad as torch
    >>> w = torch.tensor([1.0], requires_grad=True)
    >>> opt = torch.optim.Adam([w], lr=0.1)
    >>> (w * 5).sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.9
    """

    _turns_sign = False  # the fused step turns it itself

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        _check_lr(lr)
        _check_not_negative(epsilon=eps, weight_decay=weight_decay)
        _check_betas(betas)
        _check_modes(foreach, fused, differentiable)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for remembered in self.state.values():
            # Very old files have the count as a number.
            if "step" in remembered and not isinstance(remembered["step"], _C.Tensor):
                remembered["step"] = _new_count(float(remembered["step"]))

    def _rule(self, group: dict[str, Any]) -> Callable[[Tensor, Tensor, dict[str, Any]], None]:
        lr, eps, decay = _number(group["lr"]), group["eps"], _number(group["weight_decay"])
        beta1, beta2 = (_number(beta) for beta in group["betas"])
        amsgrad, maximize, decoupled = group["amsgrad"], group["maximize"], group["decoupled_weight_decay"]
        fused = None if group["differentiable"] else _fused

        def rule(param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if not state:
                state["step"] = _new_count()
                state["exp_avg"] = _C.zeros_like(param)
                state["exp_avg_sq"] = _C.zeros_like(param)
                if amsgrad:
                    state["max_exp_avg_sq"] = _C.zeros_like(param)
            mean, square, count = state["exp_avg"], state["exp_avg_sq"], state["step"]
            most = state["max_exp_avg_sq"] if amsgrad else None
            count.add_(1)
            step = count.item()
            if fused is not None and param.dtype in _FUSED_DTYPES and param.dtype == grad.dtype and param.is_cpu:
                fused(param, grad, mean, square, most, int(step), lr, beta1, beta2, eps, decay, decoupled, maximize)
                return
            if maximize:
                grad = -grad
            if decay != 0:
                if decoupled:
                    param.mul_(1 - lr * decay)
                else:
                    grad = grad.add(param, alpha=decay)
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            correction1, correction2 = 1 - beta1**step, 1 - beta2**step
            if amsgrad:
                most.copy_(_C.maximum(most, square))
                square = most
            scale = (square.sqrt() / correction2**0.5).add_(eps)
            param.addcdiv_(mean, scale, value=-lr / correction1)

        return rule
