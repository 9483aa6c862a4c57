"""autograd.functional: products and matrices of derivatives with the structure of their inputs, checked against closed
forms.
"""

import pytest
import stowgrad as torch
from stowgrad.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp

X = [0.5, -1.0, 2.0]


def x(requires_grad=False):
    return torch.tensor(X, dtype=torch.float64, requires_grad=requires_grad)


def close(a, b):
    assert torch.allclose(a, torch.as_tensor(b, dtype=a.dtype)), (a, b)


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_jacobian_has_the_shape_of_output_and_input(vectorize):
    close(jacobian(torch.square, x(), vectorize=vectorize), torch.diag(2 * x()))
    got = jacobian(lambda a: torch.stack([a, a * a]), x(), vectorize=vectorize)
    assert got.shape == (2, 3, 3)
    close(got[0], torch.eye(3, dtype=torch.float64))


def test_tuples_in_and_out_give_tuples_of_tuples():
    a, b = x(), x() * 3
    rows = jacobian(lambda p, q: (p * q, q.sum()), (a, b))
    assert [[t.shape for t in row] for row in rows] == [[(3, 3), (3, 3)], [(3,), (3,)]]
    close(rows[0][0], torch.diag(b))
    close(rows[0][1], torch.diag(a))
    close(rows[1][0], torch.zeros(3))
    close(rows[1][1], torch.ones(3))
    assert isinstance(jacobian(lambda p: (p,), a), tuple)
    assert isinstance(jacobian(torch.square, (a,)), tuple)


def test_a_hessian_of_two_inputs_has_four_blocks():
    a, b = x(), x() + 1
    (aa, ab), (ba, bb) = hessian(lambda p, q: (p.pow(3) * q).sum(), (a, b))
    close(aa, torch.diag(6 * a * b))
    close(ab, torch.diag(3 * a * a))
    close(ba, torch.diag(3 * a * a))
    close(bb, torch.zeros(3, 3))


def test_products_agree_with_the_matrices():
    def f(a):
        return torch.stack([a.sin().sum(), (a * a).prod()])

    j, v, w = (
        jacobian(f, x()),
        torch.tensor([2.0, -1.0], dtype=torch.float64),
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
    )
    value, product = vjp(f, x(), v)
    close(value, f(x()))
    close(product, v @ j)
    value, product = jvp(f, x(), w)
    close(value, f(x()))
    close(product, j @ w)

    def g(a):
        return (a.exp() * a).sum() + a.prod()

    h = hessian(g, x())
    for product in (vhp, hvp):
        value, result = product(g, x(), w)
        close(value, g(x()))
        close(result, h @ w)


def test_a_vector_can_be_left_out_for_one_element():
    close(vjp(lambda a: a.sum(), x())[1], torch.ones(3))
    close(jvp(torch.square, torch.tensor(3.0))[1], 6.0)
    with pytest.raises(RuntimeError, match="left out"):
        vjp(torch.square, x())
    with pytest.raises(RuntimeError, match="left out"):
        jvp(torch.square, x())


def test_results_can_be_differentiated_with_create_graph_and_only_then():
    a = x(requires_grad=True)
    j = jacobian(torch.square, a, create_graph=True)
    close(torch.autograd.grad(j.sum(), a)[0], 2 * torch.ones(3))
    assert not jacobian(torch.square, a).requires_grad
    _, product = vjp(torch.exp, a, torch.ones(3, dtype=torch.float64), create_graph=True)
    close(torch.autograd.grad(product.sum(), a)[0], a.detach().exp())
    h = hessian(lambda t: t.pow(4).sum(), a, create_graph=True)
    close(torch.autograd.grad(h.sum(), a)[0], 24 * a.detach())
    w = torch.ones(3, dtype=torch.float64)
    for product in (hvp, vhp):
        close(
            torch.autograd.grad(product(lambda t: t.pow(4).sum(), a, w, create_graph=True)[1].sum(), a)[0],
            24 * a.detach(),
        )
    close(torch.autograd.grad(jvp(torch.exp, a, w, create_graph=True)[1].sum(), a)[0], a.detach().exp())


def test_inputs_keep_their_state_and_get_no_gradient():
    a, plain = x(requires_grad=True), x()
    jacobian(torch.square, (a,))
    jacobian(torch.square, plain)
    assert a.grad is None and not plain.requires_grad and plain.grad_fn is None
    with torch.no_grad():
        close(jacobian(torch.square, x()), torch.diag(2 * x()))


def test_strict_refuses_what_does_not_depend():
    a, b = x(), x()
    close(jacobian(lambda p, q: p * 2, (a, b))[1], torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match="independent of input 1"):
        jacobian(lambda p, q: p * 2, (a, b), strict=True)
    with pytest.raises(RuntimeError, match="independent"):
        vjp(lambda p: torch.ones(3, dtype=torch.float64), a, b, strict=True)
    with pytest.raises(RuntimeError, match="independent"):
        hessian(lambda p: p.sum(), a, strict=True)
    close(hessian(lambda p: p.sum(), a), torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match="not supported together"):
        jacobian(torch.square, a, strict=True, vectorize=True)


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match="inputs must be"):
        jacobian(torch.square, 3.0)
    with pytest.raises(TypeError, match="output of the function"):
        jacobian(lambda a: 3.0, x())
    with pytest.raises(RuntimeError, match="single element"):
        hessian(torch.square, x())
    with pytest.raises(RuntimeError, match="size"):
        jvp(torch.square, x(), torch.ones(2))
    with pytest.raises(RuntimeError, match="2 tensors for 1"):
        jvp(torch.square, x(), (torch.ones(3), torch.ones(3)))


def test_an_empty_output_gives_an_empty_jacobian():
    assert jacobian(lambda a: a[:0], x()).shape == (0, 3)
