"""A softmax over very many classes, the frequent ones first. Source: Grave et al. 2017."""

from __future__ import annotations

from collections import namedtuple

from stowgrad import _C
from stowgrad.nn import functional as F
from stowgrad.nn.modules.container import ModuleList, Sequential
from stowgrad.nn.modules.linear import Linear
from stowgrad.nn.modules.module import Module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["AdaptiveLogSoftmaxWithLoss"]

_ASMoutput = namedtuple("_ASMoutput", ["output", "loss"])


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-probabilities of the target classes (N) and their mean loss, for input (N, in_features) or (in_features).

    Classes are sorted by frequency and cut into clusters at `cutoffs`; cluster i is projected to in_features /
    div_value ** i. ValueError for cutoffs that are not increasing in (0, n_classes); RuntimeError for a target out of
    range.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (
            cutoffs != sorted(set(cutoffs))
            or min(cutoffs) <= 0
            or max(cutoffs) > n_classes - 1
            or any(int(c) != c for c in cutoffs)
        ):
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing "
                "order, where each value "
                f"is between 1 and n_classes-1; got {cutoffs} for {n_classes} classes"
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = self.cutoffs[0]
        self.n_clusters = len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, device=device, dtype=dtype)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            width = int(in_features // (div_value ** (i + 1)))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(
                Sequential(
                    Linear(in_features, width, bias=False, device=device, dtype=dtype),
                    Linear(width, size, bias=False, device=device, dtype=dtype),
                )
            )

    def reset_parameters(self) -> None:
        """Draws every weight anew."""
        self.head.reset_parameters()
        for narrow, wide in self.tail:
            narrow.reset_parameters()
            wide.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> Any:
        if target_.dim() == 1:
            if input_.size(0) != target_.size(0) or input_.dim() != 2:
                raise RuntimeError(
                    "1D target tensor expects 2D input tensors of the same batch size; "
                    f"got {tuple(input_.shape)} and {tuple(target_.shape)}"
                )
        elif target_.dim() != 0 or input_.dim() != 1:
            raise RuntimeError(
                "0D or 1D target tensor expected, multi-target not supported; 0D target goes with 1D input; "
                f"got {tuple(input_.shape)} and {tuple(target_.shape)}"
            )
        batched = target_.dim() > 0
        input = input_ if batched else input_.unsqueeze(0)
        target = target_ if batched else target_.unsqueeze(0)
        used = 0
        output = input.new_zeros(target.size(0))
        head_class = target.new_empty(target.size(0))
        bounds = [0, *self.cutoffs]
        for i in range(len(bounds) - 1):
            low, high = bounds[i], bounds[i + 1]
            rows = ((target >= low) & (target < high)).nonzero().squeeze(1)
            if rows.numel() == 0:
                continue
            used += rows.numel()
            if i == 0:
                head_class.index_copy_(0, rows, target[rows])
            else:
                logp = F.log_softmax(self.tail[i - 1](input.index_select(0, rows)), dim=1)
                head_class.index_fill_(0, rows, self.shortlist_size + i - 1)
                local = logp.gather(1, (target[rows] - low).unsqueeze(1))
                output.index_copy_(0, rows, local.squeeze(1))
        if used != target.size(0):
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range "
                f"[{target.min().item()}, {target.max().item()}] were found."
            )
        head = F.log_softmax(self.head(input), dim=1)
        output = output + head.gather(1, head_class.unsqueeze(1)).squeeze()
        loss = (-output).mean()
        return _ASMoutput(output if batched else output.squeeze(0), loss)

    def _get_full_log_prob(self, input: Tensor, head_output: Tensor) -> Tensor:
        head = F.log_softmax(head_output, dim=1)
        parts = [head[:, : self.shortlist_size]]
        for i in range(self.n_clusters):
            cluster = F.log_softmax(self.tail[i](input), dim=1)
            parts.append(cluster + head[:, self.shortlist_size + i].unsqueeze(1))
        return _C.cat(parts, 1)

    def log_prob(self, input: Tensor) -> Tensor:
        """(N, n_classes): the log-probability of every class."""
        return self._get_full_log_prob(input, self.head(input))

    def predict(self, input: Tensor) -> Tensor:
        """(N): the most probable class of each row."""
        head = self.head(input)
        best = head.argmax(dim=1)
        in_tail = best >= self.shortlist_size
        if not in_tail.any():
            return best
        if in_tail.all():
            return self._get_full_log_prob(input, head).argmax(dim=1)
        best[in_tail] = self._get_full_log_prob(input[in_tail], head[in_tail]).argmax(dim=1)
        return best
