"""gradcheck passes what is right, names what is wrong, and leaves inputs and random numbers as they were."""

import itertools

import pytest
import stowgrad as torch
from stowgrad.autograd import Function, gradcheck, gradgradcheck
from stowgrad.autograd.gradcheck import GradcheckError, get_analytical_jacobian, get_numerical_jacobian

both = pytest.mark.parametrize("fast", [False, True])


def leaf(*shape, shift=0.0):
    n = 1
    for size in shape:
        n *= size
    values = [((i * 37) % 11) / 7.0 - 0.6 + shift for i in range(n)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape).requires_grad_()


class WrongFactor(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x


class IgnoresGradient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx, g):
        return torch.ones(ctx.shape, dtype=torch.float64)


class Restless(Function):
    counter = itertools.count()

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * (1 + 1e-9 * next(Restless.counter))


@both
def test_right_derivatives_pass(fast):
    x, y = leaf(3), leaf(2, 3, shift=0.3)
    assert gradcheck(
        lambda a, b: (a * b, a.exp()), (x, y), fast_mode=fast, check_grad_dtypes=True, check_batched_grad=True
    )
    assert gradcheck(torch.sin, x, fast_mode=fast)
    assert gradgradcheck(lambda a, b: (a * b).sin(), (x, y), fast_mode=fast)
    assert gradgradcheck(torch.exp, x, fast_mode=fast, gen_non_contig_grad_outputs=True)
    assert gradgradcheck(torch.exp, x, torch.ones(3, dtype=torch.float64, requires_grad=True), fast_mode=fast)


@both
def test_arguments_that_are_no_tensors_are_passed_on(fast):
    assert gradcheck(lambda a, n, flag: a * n if flag else a, (leaf(2), 3, True), fast_mode=fast)


@both
def test_a_wrong_derivative_is_named_with_both_jacobians(fast):
    with pytest.raises(
        GradcheckError, match=r"(?s)Jacobian mismatch for output 0 with respect to input 0.*numerical.*analytical"
    ):
        gradcheck(WrongFactor.apply, leaf(3), fast_mode=fast)
    assert gradcheck(WrongFactor.apply, leaf(3), fast_mode=fast, raise_exception=False) is False


@both
def test_a_backward_that_ignores_its_gradient_is_found(fast):
    with pytest.raises(GradcheckError, match="not multiplied by grad_output"):
        gradcheck(IgnoresGradient.apply, leaf(3), fast_mode=fast)


@both
def test_a_backward_that_changes_between_walks_is_found(fast):
    with pytest.raises(GradcheckError, match="not reentrant"):
        gradcheck(Restless.apply, leaf(3), fast_mode=fast)
    assert gradcheck(Restless.apply, leaf(3), fast_mode=fast, nondet_tol=1e-3)


def test_an_output_that_does_not_require_grad_must_not_change():
    with pytest.raises(GradcheckError, match="expected to be zero"):
        gradcheck(lambda a: a.detach() * 2, leaf(2))
    assert gradcheck(lambda a: torch.ones(2, dtype=torch.float64), leaf(2))


def test_inputs_are_put_back_bit_for_bit_and_versions_stay():
    x = leaf(3)
    before, version = x.detach().clone(), x._version
    assert gradcheck(torch.exp, x) and gradcheck(torch.exp, x, fast_mode=True)
    with pytest.raises(ZeroDivisionError):
        calls = itertools.count()
        gradcheck(lambda a: a * (1 / (3 - next(calls))), x)
    assert torch.equal(x.detach(), before) and x._version == version and x.grad is None


def test_the_random_numbers_of_the_process_are_not_drawn_from():
    state = torch.get_rng_state()
    gradcheck(torch.sin, leaf(3), fast_mode=True)
    gradgradcheck(torch.sin, leaf(3))
    assert torch.equal(state, torch.get_rng_state())


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(torch.sin, torch.ones(2))
    with pytest.raises(RuntimeError, match="stride 0"):
        gradcheck(torch.sin, leaf(1).expand(3))
    with pytest.raises(NotImplementedError, match="forward-mode"):
        gradcheck(torch.sin, leaf(1), check_forward_ad=True)
    with pytest.warns(UserWarning, match="double precision"):
        gradcheck(torch.sin, torch.ones(1, requires_grad=True), eps=1e-2, atol=1e-1, rtol=1e-1)
    with pytest.raises(ValueError, match="grad_outputs"):
        gradgradcheck(torch.sin, leaf(1), (torch.ones(1), torch.ones(1)))


def test_jacobians_can_be_had_alone():
    x, y = leaf(2), leaf(2, shift=1.0)
    numerical = get_numerical_jacobian(lambda inputs: inputs[0] * inputs[1], (x, y), eps=1e-6)
    analytical, reentrant, sizes, dtypes = get_analytical_jacobian((x, y), x * y)
    assert reentrant and sizes and dtypes
    for n, a, diagonal in zip(numerical, analytical, (y, x), strict=True):
        assert torch.allclose(n, a) and torch.allclose(a, torch.diag(diagonal.detach()))


def test_the_name_is_function_and_module_at_once():
    """`torch.autograd.gradcheck` is a function and a module; whichever a program got, it can be called."""
    import importlib

    module = importlib.import_module("stowgrad.autograd.gradcheck")
    assert module.gradcheck is gradcheck and module.GradcheckError is GradcheckError
    assert module(torch.sin, leaf(1)) and torch.autograd.gradcheck(torch.sin, leaf(1))
