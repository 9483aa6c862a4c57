"""Policies for saved values, and what joins them.

A pair is what `saved_tensors_hooks` takes: two functions, as a tuple or as such a context (`save_on_cpu()`).
Invariant: what is made here is a pair like any other, so it nests with hooks, frames and the mutation guard.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad.autograd.graph import saved_tensors_hooks

__all__ = ["compose", "release"]


def _pair(given, which: str):
    if isinstance(given, saved_tensors_hooks):
        return given.pack_hook, given.unpack_hook
    if isinstance(given, tuple) and len(given) == 2 and all(map(callable, given)):
        return given
    raise TypeError(
        f"compose(): {which} must be a saved_tensors_hooks context or a tuple (pack, unpack), not {type(given).__name__}"
    )


def compose(first, second) -> saved_tensors_hooks:
    """One pair out of two: what `first` packed goes through `second`'s pack if it is a tensor, and comes back the other way round.

    Each of both is a `saved_tensors_hooks` context or a tuple `(pack, unpack)`; TypeError for anything else. What `first`
    packs is for `second` a value like any other: `second` must give it back with the same shape and dtype, otherwise
    RuntimeError. Anything that is no tensor stays with `first`.

    >>> import stowgrad as torch
    >>> from stowgrad.stow import compose
    >>> halves = lambda t: t.to(torch.float16), lambda t: t.to(torch.float32)
    >>> lists = lambda t: (t.tolist(), t.dtype), lambda packed: torch.tensor(packed[0], dtype=packed[1])
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> with compose(halves, lists):
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    tensor([2., 4.])
    """
    pack_first, unpack_first = _pair(first, "first")
    pack_second, unpack_second = _pair(second, "second")

    def pack(tensor):
        packed = pack_first(tensor)
        if not isinstance(packed, _C.Tensor):
            return packed, None
        return pack_second(packed), (packed.shape, packed.dtype)

    def unpack(both):
        packed, looks = both
        if looks is not None:
            packed = unpack_second(packed)
            if not isinstance(packed, _C.Tensor):
                raise TypeError(
                    f"compose(): the second pair unpacked {type(packed).__name__}, but it packed a tensor of shape {tuple(looks[0])}"
                )
            if (packed.shape, packed.dtype) != looks:
                raise RuntimeError(
                    f"compose(): the second pair unpacked a tensor of shape {tuple(packed.shape)} and dtype {packed.dtype}, "
                    f"but it packed shape {tuple(looks[0])} and dtype {looks[1]}"
                )
        return unpack_first(packed)

    return saved_tensors_hooks(pack, unpack)


def release(*tensors) -> None:
    """Lets go at once of everything that the graphs of these tensors (or GradientEdges) hold for backward, as if backward had run without
    `retain_graph`. Backward through these parts afterwards is the RuntimeError of a second time; TypeError for anything else.

    >>> import stowgrad as torch
    >>> x = torch.ones(1000, requires_grad=True)
    >>> before = torch.memory_stats()["saved"]["live"]
    >>> y = x.exp().sum()
    >>> torch.stow.release(y)
    >>> torch.memory_stats()["saved"]["live"] - before
    0
    """
    _C._release_graph(*tensors)
