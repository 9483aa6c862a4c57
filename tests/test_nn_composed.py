"""What is composed while the core has no kernel for it gives what a kernel gives, so that one can take its place."""

import inspect

import pytest
import stowgrad as torch
import stowgrad.nn.functional as F
from stowgrad import _C
from stowgrad.nn import composed

CALLS = {
    "constant_pad_nd": "(x, (1, -1, 2, 0), 3.0)",
    "reflection_pad2d": "(x, (1, 2, 0, 1))",
    "replication_pad2d": "(x, (1, 2, 0, 1))",
    "max_pool2d_with_indices": "(x, 3, 2, 1, 1, True)",
    "avg_pool2d": "(x, 3, 2, 1, True, False)",
    "adaptive_avg_pool2d": "(x, (3, 2))",
    "adaptive_max_pool2d": "(x, (3, 2))",
    "im2col": "(x, (2, 3), (1, 2), (1, 0), (2, 1))",
    "conv1d": "(x[0, :, :3], w[0], None, 2, 1, 2)",
    "conv_transpose2d": "(x, w, None, 2, 1, 1, 1, 1)",
    "upsample_nearest2d": "(x, (7, 3), None)",
    "upsample_bilinear2d": "(x, None, False, (1.5, 2.0))",
    "upsample_bicubic2d": "(x, (7, 3), True, None)",
    "pixel_shuffle": "(x, 2)",
    "channel_shuffle": "(x, 2)",
    "group_norm": "(x, 2, x[0, :, 0, 0], None, 1e-5, True)",
    "scaled_dot_product_attention": "(x, x, x, None, 0.0, True)",
    "soft_margin_loss": "(x, x.detach().sign(), 1)",
    "multi_margin_loss": "(x[0, 0], t, 2, 0.5, None, 1)",
}


@pytest.fixture
def env():
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    return {"x": x, "w": w, "t": torch.tensor([0, 3, 5, 1, 2, 0])}


def kernel(name):
    return getattr(_C._nn, name, None) or getattr(_C, name, None)


@pytest.mark.parametrize("name", CALLS)
def test_composition_gives_what_the_kernel_gives(name, env):
    if kernel(name) is None:
        pytest.skip("the core has no kernel for it yet")
    found = []
    for f in (getattr(composed, name), kernel(name)):
        out = eval("f" + CALLS[name], {**env, "f": f})
        values, rest = (out[0], out[1:]) if isinstance(out, tuple) else (out, ())
        grads = torch.autograd.grad((values * values.detach().cos()).sum(), env["x"])
        found.append((values, grads[0], *rest))
    for got, want in zip(*found, strict=True):
        assert torch.allclose(got, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["max_pool2d_with_indices", "conv_transpose2d", "upsample_bicubic2d", "group_norm"])
def test_composition_has_derivatives_of_the_second_order(name, env):
    def f(x):
        out = eval("f" + CALLS[name], {**env, "x": x, "f": getattr(composed, name)})
        return (out[0] if isinstance(out, tuple) else out).sin()

    small = env["x"][:1, :, :2, :2].detach().requires_grad_()
    assert torch.autograd.gradgradcheck(f, (small,), atol=1e-4)


def test_functions_take_the_kernel_where_there_is_one():
    for name, f in vars(composed).items():
        if inspect.isfunction(f) and not name.startswith("_") and f.__module__ == composed.__name__:
            assert getattr(F._kernels, name) == (kernel(name) or f)


def test_an_operation_that_is_nowhere_is_named():
    with pytest.raises(AttributeError, match="no_such_operation"):
        _ = F._kernels.no_such_operation
