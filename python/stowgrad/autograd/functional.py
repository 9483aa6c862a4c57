"""Derivatives of functions: jacobian, hessian and their products with vectors, by backward alone.

Each function takes `func`, which maps tensors to tensors, and `inputs`, a tensor or a tuple; the results have the
structure of both. Invariants: the inputs themselves are never recorded on (a view or a detached copy is), their
`.grad` stays as it is; with `create_graph` the results can be differentiated, by the inputs too; with `strict` an
output that does not depend on an input is a RuntimeError instead of zeros.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad.autograd import grad as _grad
from stowgrad.autograd.grad_mode import enable_grad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

_Tensor = _C.Tensor


def _tuple(x, what: str, name: str) -> tuple:
    """(whether it was a tuple, its tensors)."""
    several = isinstance(x, tuple)
    tensors = tuple(x) if several else (x,)
    for i, t in enumerate(tensors):
        if not isinstance(t, _Tensor):
            raise TypeError(
                f"{name}: the {what} must be a Tensor or a tuple of Tensors, but "
                + (f"entry {i} is a {type(t).__name__}" if several else f"it is a {type(t).__name__}")
            )
    return several, tensors


def _single(results: tuple, several: bool):
    return results if several else results[0]


def _recorded(tensors: tuple, create_graph: bool) -> tuple:
    """The inputs to compute on: aliases that are recorded on, tied to the given ones only if the result shall be."""
    return tuple(t.view_as(t) if create_graph and t.requires_grad else t.detach().requires_grad_() for t in tensors)


def _released(results: tuple, create_graph: bool) -> tuple:
    return results if create_graph else tuple(t.detach() for t in results)


def _called(func, inputs: tuple, name: str) -> tuple:
    several, outputs = _tuple(func(*inputs), "output of the function", name)
    return several, outputs


def _check_vector(v, reference: tuple, what: str, name: str) -> tuple:
    if v is None:
        if len(reference) != 1 or reference[0].numel() != 1:
            raise RuntimeError(
                f"{name}: the vector v can be left out only where the {what} is one tensor with one element"
            )
        return tuple(_C.ones_like(t) for t in reference)
    _, v = _tuple(v, "vector v", name)
    if len(v) != len(reference):
        raise RuntimeError(f"{name}: v has {len(v)} tensors for {len(reference)} of the {what}")
    for i, (a, b) in enumerate(zip(v, reference, strict=True)):
        if a.shape != b.shape:
            raise RuntimeError(f"{name}: v[{i}] has size {tuple(a.shape)} where the {what} has {tuple(b.shape)}")
    return v


def _depends(outputs: tuple, strict: bool, name: str, what: str = "output of the user-provided function") -> None:
    if not strict:
        return
    for i, o in enumerate(outputs):
        if not o.requires_grad:
            raise RuntimeError(f"{name}: {what} {i} is independent of all inputs, which strict=True does not allow")


def _filled(
    grads: tuple,
    inputs: tuple,
    strict: bool,
    create_graph: bool,
    name: str,
    what: str = "output of the user-provided function",
):
    """Zeros for missing gradients; with strict, and for results that shall be differentiable, an error."""
    filled = []
    for i, (g, x) in enumerate(zip(grads, inputs, strict=True)):
        if g is None:
            if strict:
                raise RuntimeError(f"{name}: the {what} is independent of input {i}, which strict=True does not allow")
            g = _C.zeros_like(x)
        elif strict and create_graph and not g.requires_grad:
            raise RuntimeError(
                f"{name}: the gradient with respect to input {i} is independent of the inputs, so it cannot be "
                "differentiated again, "
                "which strict=True does not allow with create_graph=True"
            )
        filled.append(g)
    return tuple(filled)


def _gradient(outputs: tuple, inputs: tuple, cotangents, create_graph: bool, retain: bool | None = None) -> tuple:
    """`autograd.grad` that gives None for everything where no output requires grad."""
    pairs = [
        (o, None if cotangents is None else c)
        for o, c in zip(outputs, cotangents if cotangents is not None else (None,) * len(outputs), strict=True)
        if o.requires_grad
    ]
    if not pairs:
        return (None,) * len(inputs)
    return _grad(
        tuple(o for o, _ in pairs),
        inputs,
        tuple(c for _, c in pairs),
        allow_unused=True,
        create_graph=create_graph,
        retain_graph=retain,
    )


def vjp(func, inputs, v=None, create_graph: bool = False, strict: bool = False) -> tuple:
    """`(func(*inputs), v @ jacobian)`: the vector-jacobian product, shaped as the inputs. `v` has the shapes of the
    outputs.

    >>> import stowgrad as torch
    >>> torch.autograd.functional.vjp(torch.square, torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0]))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        in_several, inputs = _tuple(inputs, "inputs", "vjp")
        xs = _recorded(inputs, create_graph)
        out_several, outputs = _called(func, xs, "vjp")
        _depends(outputs, strict, "vjp")
        v = _check_vector(v, outputs, "output", "vjp")
        products = _filled(_gradient(outputs, xs, v, create_graph), xs, strict, create_graph, "vjp")
    return _single(_released(outputs, create_graph), out_several), _single(
        _released(products, create_graph), in_several
    )


def jvp(func, inputs, v=None, create_graph: bool = False, strict: bool = False) -> tuple:
    """`(func(*inputs), jacobian @ v)`: the jacobian-vector product, shaped as the outputs, by differentiating a vjp.

    >>> import stowgrad as torch
    >>> torch.autograd.functional.jvp(torch.square, torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
    (tensor([1., 4.]), tensor([2., 0.]))
    """
    with enable_grad():
        _, inputs = _tuple(inputs, "inputs", "jvp")
        v = _check_vector(v, inputs, "input", "jvp")
        xs = _recorded(inputs, create_graph)
        out_several, outputs = _called(func, xs, "jvp")
        _depends(outputs, strict, "jvp")
        # w @ J is linear in w: its derivative by w, times v, is J @ v
        w = tuple(_C.zeros_like(o).requires_grad_() for o in outputs)
        products = _filled(_gradient(outputs, xs, w, True), xs, strict, False, "jvp")
        results = _filled(_gradient(products, w, v, create_graph), w, False, create_graph and strict, "jvp")
        if strict and create_graph:
            for i, r in enumerate(results):
                if not r.requires_grad:
                    raise RuntimeError(
                        f"jvp: the jacobian of output {i} is independent of the inputs, which strict=True does not "
                        "allow"
                    )
    return _single(_released(outputs, create_graph), out_several), _single(
        _released(results, create_graph), out_several
    )


def jacobian(
    func,
    inputs,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
):
    """The jacobian: for each output and each input a tensor of shape `output.shape + input.shape`, nested as both are.

    One backward an output entry. `vectorize=True` gives the same by the same loop, and like torch's it does not go
    with `strict`.

    >>> import stowgrad as torch
    >>> torch.autograd.functional.jacobian(torch.square, torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    if strategy not in ("reverse-mode", "forward-mode"):
        raise AssertionError(f"jacobian: strategy must be 'reverse-mode' or 'forward-mode', not {strategy!r}")
    if strategy == "forward-mode":
        if create_graph:
            raise NotImplementedError(
                "jacobian: create_graph=True does not go with strategy='forward-mode'; use 'reverse-mode'"
            )
        if not vectorize:
            raise NotImplementedError("jacobian: strategy='forward-mode' needs vectorize=True")
    with enable_grad():
        in_several, inputs = _tuple(inputs, "inputs", "jacobian")
        xs = _recorded(inputs, create_graph)
        out_several, outputs = _called(func, xs, "jacobian")
        if strict and vectorize:
            raise RuntimeError(
                "jacobian: strict=True and vectorize=True are not supported together: turn one of them off"
            )
        _depends(outputs, strict, "jacobian")
        rows = tuple(_jacobian_rows(o, xs, create_graph, strict, i) for i, o in enumerate(outputs))
    result = tuple(_single(row, in_several) for row in rows)
    return _single(result, out_several)


def _jacobian_rows(output, xs: tuple, create_graph: bool, strict: bool, i: int) -> tuple:
    """The jacobians of one output by each input."""
    flat = output.reshape(-1)
    columns = [[] for _ in xs]
    for j in range(output.numel()):
        grads = _gradient((flat[j],), xs, None, create_graph, True)
        grads = _filled(grads, xs, strict, create_graph, "jacobian", f"entry {j} of output {i}")
        for column, g in zip(columns, grads, strict=True):
            column.append(g)
    shaped = [
        (_C.stack(column) if column else x.new_zeros((0, *x.shape))).reshape((*output.shape, *x.shape))
        for column, x in zip(columns, xs, strict=True)
    ]
    return _released(tuple(shaped), create_graph)


def _scalar(outputs: tuple, several: bool, name: str):
    if several:
        raise RuntimeError(f"{name}: the function must return one Tensor, not a tuple of {len(outputs)}")
    (output,) = outputs
    if output.numel() != 1:
        raise RuntimeError(
            f"{name}: the Tensor returned by the function should contain a single element, not shape "
            f"{tuple(output.shape)}"
        )
    return output.reshape(())


def hessian(
    func,
    inputs,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
):
    """The hessian of a function with one number as its result: for inputs a and b a tensor of shape `a.shape +
    b.shape`.

    >>> import stowgrad as torch
    >>> torch.autograd.functional.hessian(lambda x: x.pow(3).sum(), torch.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    if outer_jacobian_strategy not in ("reverse-mode", "forward-mode"):
        raise AssertionError(
            "hessian: outer_jacobian_strategy must be 'reverse-mode' or 'forward-mode', not "
            f"{outer_jacobian_strategy!r}"
        )
    if outer_jacobian_strategy == "forward-mode":
        if create_graph:
            raise NotImplementedError(
                "hessian: create_graph=True does not go with outer_jacobian_strategy='forward-mode'; use 'reverse-mode'"
            )
        if not vectorize:
            raise NotImplementedError("hessian: outer_jacobian_strategy='forward-mode' needs vectorize=True")
    several, inputs = _tuple(inputs, "inputs", "hessian")

    def gradient(*xs):
        out_several, outputs = _called(func, xs, "hessian")
        _depends((_scalar(outputs, out_several, "hessian"),), strict, "hessian")
        grads = _gradient((outputs[0].reshape(()),), xs, None, True)
        return _filled(grads, xs, strict, False, "hessian")

    def checked(*xs):
        grads = gradient(*xs)
        if strict and any(not g.requires_grad for g in grads):
            raise RuntimeError(
                "hessian: the jacobian of the user-provided function is independent of the inputs, which strict=True "
                "does not allow"
            )
        return grads

    rows = jacobian(
        checked, inputs, create_graph=create_graph, strict=strict, vectorize=vectorize, strategy="reverse-mode"
    )
    return rows if several else rows[0][0]


def _second(func, inputs, v, create_graph: bool, strict: bool, name: str) -> tuple:
    several, inputs = _tuple(inputs, "inputs", name)
    v = _check_vector(v, inputs, "input", name)
    xs = _recorded(inputs, create_graph)
    out_several, outputs = _called(func, xs, name)
    output = _scalar(outputs, out_several, name)
    _depends((output,), strict, name)
    first = _filled(_gradient((output,), xs, None, True), xs, strict, True, name)
    return several, v, xs, outputs, first


def vhp(func, inputs, v=None, create_graph: bool = False, strict: bool = False) -> tuple:
    """`(func(*inputs), v @ hessian)` of a function with one number as its result: one backward through a backward.

    >>> import stowgrad as torch
    >>> torch.autograd.functional.vhp(lambda x: x.pow(3).sum(), torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
    (tensor(9.), tensor([6., 0.]))
    """
    with enable_grad():
        several, v, xs, outputs, first = _second(func, inputs, v, create_graph, strict, "vhp")
        products = _filled(
            _gradient(first, xs, v, create_graph), xs, strict, create_graph, "vhp", "jacobian of the function"
        )
    return _released(outputs, create_graph)[0], _single(_released(products, create_graph), several)


def hvp(func, inputs, v=None, create_graph: bool = False, strict: bool = False) -> tuple:
    """`(func(*inputs), hessian @ v)` of a function with one number as its result, by differentiating the gradient's
    vjp.

    The hessian of a smooth function is symmetric and `vhp` gives the same for less.

    >>> import stowgrad as torch
    >>> torch.autograd.functional.hvp(lambda x: x.pow(3).sum(), torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
    (tensor(9.), tensor([6., 0.]))
    """
    with enable_grad():
        several, v, xs, outputs, first = _second(func, inputs, v, create_graph, strict, "hvp")
        w = tuple(_C.zeros_like(x).requires_grad_() for x in xs)
        through = _filled(_gradient(first, xs, w, True), xs, strict, False, "hvp", "jacobian of the function")
        products = _filled(_gradient(through, w, v, create_graph), w, False, False, "hvp")
        if strict and create_graph and any(not p.requires_grad for p in products):
            raise RuntimeError(
                "hvp: the hessian is independent of the inputs, which strict=True does not allow with create_graph=True"
            )
    return _released(outputs, create_graph)[0], _single(_released(products, create_graph), several)
