"""`gradcheck` and `gradgradcheck`: derivatives held against finite differences.

Numbers come from central differences of the function itself, entry by entry of the inputs (or, in fast mode, along one
random direction an input); the derivative comes from backward, row by row. Jacobians here have a row for each entry of
an input and a column for each entry of an output. Invariants: inputs are put back bit for bit, also when the function
raises; the process's random numbers are not drawn from. The module itself can be called, since
`torch.autograd.gradcheck` names both.
"""

from __future__ import annotations

import sys

from stowgrad import _C
from stowgrad.autograd import Function, grad
from stowgrad.autograd.grad_mode import enable_grad, no_grad

__all__ = ["GradcheckError", "get_analytical_jacobian", "get_numerical_jacobian", "gradcheck", "gradgradcheck"]

_Tensor = _C.Tensor


class GradcheckError(RuntimeError):
    """What `gradcheck` found wrong."""


def _as_tuple(x) -> tuple:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _wanted(x) -> bool:
    return isinstance(x, _Tensor) and x.requires_grad


def _outputs(func, inputs) -> tuple:
    return tuple(o for o in _as_tuple(func(*inputs)) if isinstance(o, _Tensor))


def _differentiable(outputs) -> tuple:
    return tuple(o for o in outputs if o.requires_grad)


def _what(i: int, t) -> str:
    return f"{i} (shape {tuple(t.shape)}, {t.dtype})"


# ---- jacobians -------------------------------------------------------------------------------------------------------


def _shifted(func, data, index, eps: float, pick) -> list:
    """Central difference of the picked outputs by one entry of `data`, which is put back whatever happens."""
    entry = data[index]
    before = entry.clone()
    try:
        data[index] = before - eps
        low = [o.detach().clone() for o in pick(func())]
        data[index] = before + eps
        high = [o.detach().clone() for o in pick(func())]
    finally:
        data[index] = before
    return [((b - a) / (2 * eps)).reshape(-1) for a, b in zip(low, high, strict=True)]


def _indices(shape):
    from itertools import product

    return product(*map(range, shape))


def _numerical(func, inputs, target, eps: float, pick=None) -> list:
    """One jacobian an output of `func(*inputs)` by the entries of `target`, which must be one of the inputs."""
    if pick is None:

        def pick(outputs):
            return outputs

    data = target.data
    columns = [_shifted(lambda: _outputs(func, inputs), data, index, eps, pick) for index in _indices(target.shape)]
    if not columns:
        return [o.new_zeros((0, o.numel())) for o in pick(_outputs(func, inputs))]
    return [_C.stack(rows) for rows in zip(*columns, strict=True)]


def _vjp(output, inputs, cotangent) -> tuple:
    return grad(output, inputs, cotangent, retain_graph=True, allow_unused=True)


def _analytical(output, inputs) -> list:
    """One jacobian an input of `output`, by a backward for each of its entries."""
    n = output.numel()
    columns = [[] for _ in inputs]
    for j in range(n):
        cotangent = _C.zeros(n, dtype=output.dtype)
        cotangent[j] = 1
        for column, x, g in zip(columns, inputs, _vjp(output, inputs, cotangent.reshape(output.shape)), strict=True):
            _check_gradient(g, x)
            column.append(
                _C.zeros(x.numel(), dtype=output.dtype) if g is None else g.detach().reshape(-1).to(output.dtype)
            )
    return [
        _C.stack(column, 1) if column else _C.zeros((x.numel(), 0), dtype=output.dtype)
        for column, x in zip(columns, inputs, strict=True)
    ]


def _check_gradient(g, x) -> None:
    if g is not None and g.shape != x.shape:
        raise GradcheckError(
            f"Analytical gradient has incorrect size: {tuple(g.shape)} for an input of shape {tuple(x.shape)}; "
            "backward must give each input a gradient of its own shape"
        )


def get_numerical_jacobian(fn, inputs, target=None, eps: float = 1e-3, grad_out: float = 1.0) -> tuple:
    """The jacobian of the first output of `fn(inputs)` by each tensor of `target` (default: the inputs that require
    grad), by finite differences.
    """
    if grad_out != 1.0:
        raise ValueError("get_numerical_jacobian: grad_out other than 1.0 is not supported")
    inputs = _as_tuple(inputs)
    targets = [t for t in (_as_tuple(target) if target is not None else inputs) if _wanted(t)]
    return tuple(_numerical(lambda *args: fn(args), inputs, t, eps)[0] for t in targets)


def get_analytical_jacobian(inputs, output, nondet_tol: float = 0.0, grad_out: float = 1.0) -> tuple:
    """The jacobians of `output` by each input that requires grad, by backward; then whether two walks agreed, and
    whether sizes and dtypes were right.
    """
    if grad_out != 1.0:
        raise ValueError("get_analytical_jacobian: grad_out other than 1.0 is not supported")
    diff = [x for x in _as_tuple(inputs) if _wanted(x)]
    gradients = _vjp(output, diff, _C.zeros_like(output))
    sizes = all(g is None or g.shape == x.shape for g, x in zip(gradients, diff, strict=True))
    dtypes = all(g is None or g.dtype == x.dtype for g, x in zip(gradients, diff, strict=True))
    if not sizes:
        return tuple(_C.zeros((x.numel(), output.numel()), dtype=output.dtype) for x in diff), True, False, dtypes
    first, second = _analytical(output, diff), _analytical(output, diff)
    return tuple(first), all(_distance(a, b) <= nondet_tol for a, b in zip(first, second, strict=True)), True, dtypes


def _distance(a, b) -> float:
    if a.numel() == 0:
        return 0.0
    difference = (a - b).abs()
    return difference.masked_fill(_C.eq(a, b) | (_C.isnan(a) & _C.isnan(b)), 0.0).max().item()


# ---- the checks ------------------------------------------------------------------------------------------------------


def _check_inputs(inputs) -> None:
    found = False
    for i, x in enumerate(inputs):
        if not _wanted(x):
            continue
        found = True
        if x.dtype != _C.float64:
            import warnings

            warnings.warn(
                f"gradcheck: input #{i} requires gradient and is not a double precision floating point tensor but "
                f"{x.dtype}: "
                "finite differences will probably be too coarse",
                stacklevel=4,
            )
        if any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)):
            raise RuntimeError(
                f"gradcheck: the {i}th input has a dimension with stride 0: its entries share memory and cannot be "
                "changed one by "
                "one; give a .contiguous() one"
            )
    if not found:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them has requires_grad=True"
        )


def _check_no_differentiable_output(func, inputs, eps: float) -> None:
    for i, x in enumerate(inputs):
        if not _wanted(x):
            continue
        for j, jacobian in enumerate(_numerical(func, inputs, x, eps)):
            if jacobian.is_floating_point() and bool(jacobian.ne(0).any()):
                raise GradcheckError(
                    f"Numerical gradient for function expected to be zero: output {j} does not require grad, yet it "
                    f"changes with input {_what(i, x)}"
                )


def _mismatch(i: int, j: int, numerical, analytical, where: str = "") -> GradcheckError:
    worst = (analytical - numerical).abs()
    return GradcheckError(
        f"Jacobian mismatch for output {i} with respect to input {j}{where}: the largest difference is "
        f"{worst.max().item():.3g}\n"
        f"numerical: {numerical}\nanalytical: {analytical}"
    )


def _check_slow(func, inputs, outputs, eps: float, atol: float, rtol: float, nondet_tol: float, dtypes: bool) -> None:
    diff = [(j, x) for j, x in enumerate(inputs) if _wanted(x)]
    numerical = [_numerical(func, inputs, x, eps, _differentiable) for _, x in diff]
    for i, output in enumerate(outputs):
        analytical = _analytical(output, [x for _, x in diff])
        again = _analytical(output, [x for _, x in diff])
        for (j, x), a, b, n in zip(diff, analytical, again, (rows[i] for rows in numerical), strict=True):
            if not _C.allclose(a, n.to(a.dtype), rtol, atol):
                raise _mismatch(i, j, n, a)
            if _distance(a, b) > nondet_tol:
                raise GradcheckError(
                    f"Backward is not reentrant: running it twice gives output {i} two gradients by input "
                    f"{_what(j, x)} that differ by "
                    f"{_distance(a, b):.3g}; allow it with nondet_tol if the operation is known to be nondeterministic"
                )
        if dtypes:
            _check_dtypes(output, diff)


def _check_dtypes(output, diff) -> None:
    for (j, x), g in zip(diff, _vjp(output, [x for _, x in diff], _C.ones_like(output)), strict=True):
        if g is not None and g.dtype != x.dtype:
            raise GradcheckError(f"Analytical gradient has incorrect dtype: {g.dtype} for input {_what(j, x)}")


def _direction(t, generator):
    """A random direction of length 1, all entries positive, so that tolerances can be scaled by its sum."""
    v = _C.rand(t.numel(), generator=generator, dtype=_C.float64)
    length = v.norm().item()
    return (v / length if length else v).reshape(t.shape).to(t.dtype)


def _check_fast(func, inputs, outputs, eps: float, atol: float, rtol: float, nondet_tol: float, dtypes: bool) -> None:
    generator = _C.Generator()
    generator.manual_seed(20240229)
    diff = [(j, x) for j, x in enumerate(inputs) if _wanted(x)]
    cotangents = [_direction(o, generator) for o in outputs]
    for j, x in diff:
        u = _direction(x, generator)
        data = x.data
        before = data.clone()
        try:
            data.copy_(before - eps * u)
            low = [o.detach().clone() for o in _differentiable(_outputs(func, inputs))]
            data.copy_(before + eps * u)
            high = [o.detach().clone() for o in _differentiable(_outputs(func, inputs))]
        finally:
            data.copy_(before)
        for i, (output, v) in enumerate(zip(outputs, cotangents, strict=True)):
            n = ((high[i] - low[i]) / (2 * eps) * v).sum()
            g, twice = _vjp(output, [x], v)[0], _vjp(output, [x], v)[0]
            _check_gradient(g, x)
            a = _C.zeros((), dtype=output.dtype) if g is None else (g.detach() * u).sum().to(output.dtype)
            scaled = atol * max(u.sum().item() * v.sum().item(), 1.0)
            if not _C.allclose(a, n.to(a.dtype), rtol, scaled):
                try:
                    _check_slow(func, inputs, outputs, eps, atol, rtol, nondet_tol, dtypes)
                except GradcheckError as e:
                    raise GradcheckError(f"in fast mode, confirmed entry by entry: {e}") from None
                raise _mismatch(
                    i, j, n, a, ", along one random direction (entry by entry, in slow mode, the check passes)"
                )
            if g is not None and _distance(g.detach(), twice.detach()) > nondet_tol:
                raise GradcheckError(
                    f"Backward is not reentrant: two walks give output {i} different gradients by input {_what(j, x)}"
                )
    if dtypes:
        for output in outputs:
            _check_dtypes(output, diff)


def _check_scaled_by_grad_output(outputs, inputs) -> None:
    diff = [(j, x) for j, x in enumerate(inputs) if _wanted(x)]
    zeros = [_C.zeros_like(o) for o in outputs]
    gradients = grad(outputs, [x for _, x in diff], zeros, retain_graph=True, allow_unused=True)
    for (j, x), g in zip(diff, gradients, strict=True):
        if g is None:
            continue
        _check_gradient(g, x)
        if bool(g.ne(0).any()):
            raise GradcheckError(
                f"backward not multiplied by grad_output: with zeros coming in, input {_what(j, x)} gets a gradient "
                "that is not zero"
            )
        if g.device != x.device:
            raise GradcheckError(f"the gradient of input {_what(j, x)} is on {g.device}")


class _Undefined(Function):
    """Passes its input on, and gives no gradient back."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return None


def _check_undefined(func, inputs) -> None:
    diff = [x for x in inputs if _wanted(x)]
    outputs = _differentiable(_outputs(func, inputs))
    choices = [range(len(outputs))] + ([(i,) for i in range(len(outputs))] if len(outputs) > 1 else [])
    for chosen in choices:
        outputs = _differentiable(_outputs(func, inputs))
        checked = [_Undefined.apply(o) if i in chosen else o for i, o in enumerate(outputs)]
        try:
            gradients = grad(checked, diff, [_C.zeros_like(o) for o in checked], allow_unused=True)
        except Exception as e:
            raise GradcheckError(
                f"Expected backward function to handle undefined output grads, but it raised {type(e).__name__}: {e}"
            ) from e
        if any(g is not None and bool(g.ne(0).any()) for g in gradients):
            raise GradcheckError(
                "Expected all tensors to be undefined or zero gradients where the gradients of the outputs are "
                "undefined"
            )


def _check_batched(outputs, inputs) -> None:
    diff = [x for x in inputs if _wanted(x)]
    for i, output in enumerate(outputs):
        rows = [_C.ones_like(output), _C.full_like(output, 0.5)]
        together = grad(output, diff, _C.stack(rows), retain_graph=True, allow_unused=True, is_grads_batched=True)
        for k, row in enumerate(rows):
            for j, (a, b) in enumerate(zip(together, _vjp(output, diff, row), strict=True)):
                if (a is None) != (b is None) or (a is not None and not _C.allclose(a[k], b)):
                    raise GradcheckError(
                        f"batched gradients of output {i} by input {j} differ from those computed one by one"
                    )


def _gradcheck(func, inputs, eps, atol, rtol, nondet_tol, undefined, dtypes, batched, fast_mode) -> None:
    inputs = _as_tuple(inputs)
    _check_inputs(inputs)
    with enable_grad():
        everything = _outputs(func, inputs)
        outputs = _differentiable(everything)
        for i, o in enumerate(outputs):
            if not o.is_floating_point():
                raise ValueError(f"gradcheck: output {_what(i, o)} requires grad and is not floating point")
        if not outputs:
            _check_no_differentiable_output(func, inputs, eps)
            return
        (_check_fast if fast_mode else _check_slow)(func, inputs, outputs, eps, atol, rtol, nondet_tol, dtypes)
        _check_scaled_by_grad_output(outputs, inputs)
        if batched:
            _check_batched(outputs, inputs)
        if undefined:
            _check_undefined(func, inputs)


def gradcheck(
    func,
    inputs,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Whether backward of `func(*inputs)` agrees with finite differences, for every output and every input that
    requires grad.

    Inputs should be float64; each entry is moved by `eps` both ways and the difference compared within `atol` and
    `rtol`. Also checked: two walks agree (`nondet_tol`), zeros in give zeros out, missing output gradients are
    handled. `fast_mode` compares along one random direction an input instead of entry by entry. GradcheckError on
    disagreement, or False with `raise_exception=False`. NotImplementedError for the forward-mode checks. `masked`
    concerns sparse inputs and changes nothing.

    >>> import stowgrad as torch
    >>> x = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
    >>> torch.autograd.gradcheck(torch.sin, x)
    True
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError("gradcheck: Expected at least one of check_forward_ad and check_backward_ad")
    if check_batched_grad and not check_backward_ad:
        raise AssertionError("gradcheck: check_batched_grad needs check_backward_ad")
    if check_forward_ad or check_batched_forward_grad:
        raise NotImplementedError("gradcheck: stowgrad has no forward-mode differentiation to check (check_forward_ad)")
    try:
        _gradcheck(
            func,
            inputs,
            eps,
            atol,
            rtol,
            nondet_tol,
            check_undefined_grad,
            check_grad_dtypes,
            check_batched_grad,
            fast_mode,
        )
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func,
    inputs,
    grad_outputs=None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """`gradcheck` of the gradient: second derivatives of `func(*inputs)`, by the inputs and by `grad_outputs` (random
    if None).

    >>> import stowgrad as torch
    >>> x = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
    >>> torch.autograd.gradgradcheck(torch.sin, x)
    True
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError("gradgradcheck: Expected at least one of check_fwd_over_rev and check_rev_over_rev")
    if check_fwd_over_rev:
        raise NotImplementedError(
            "gradgradcheck: stowgrad has no forward-mode differentiation to check (check_fwd_over_rev)"
        )
    inputs = _as_tuple(inputs)
    with enable_grad():
        outputs = _differentiable(_outputs(func, inputs))
    if grad_outputs is None:
        generator = _C.Generator()
        generator.manual_seed(20240230)
        made = []
        with no_grad():
            for o in outputs:
                v = _C.randn(o.shape, dtype=o.dtype, generator=generator)
                if gen_non_contig_grad_outputs and v.dim() and v.numel():
                    v = _C.stack([v, v], -1)[..., 0]
                made.append(v)
        grad_outputs = tuple(v.requires_grad_() for v in made)
    else:
        grad_outputs = _as_tuple(grad_outputs)
    if len(grad_outputs) != len(outputs):
        raise ValueError(f"gradgradcheck: {len(grad_outputs)} grad_outputs for {len(outputs)} differentiable outputs")
    n = len(grad_outputs)

    def first_derivative(*args):
        inner, cotangents = args[: len(args) - n], args[len(args) - n :]
        results = _differentiable(_outputs(func, inner))
        if not results:
            raise ValueError("gradgradcheck: no output of the function requires grad")
        gradients = grad(results, [x for x in inner if _wanted(x)], cotangents, create_graph=True, allow_unused=True)
        return tuple(g for g in gradients if g is not None)

    return gradcheck(
        first_derivative,
        inputs + grad_outputs,
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        fast_mode=fast_mode,
        masked=masked,
    )


class _CallableModule(type(sys)):
    """This module, which can be called as the function that shares its name."""

    def __call__(self, *args, **kwargs):
        return gradcheck(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
