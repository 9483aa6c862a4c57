"""Writes in place and into `out=`: which are refused, by whom, and what the others see."""

import pytest
import stowgrad as torch


def leaf(*shape):
    return torch.ones(shape, requires_grad=True)


def test_a_view_that_requires_grad_itself_is_no_target_even_if_its_base_does_not():
    base = torch.zeros(3)
    view = base[:2]
    view.requires_grad_()
    for write in (lambda: view.mul_(2), lambda: view[0].fill_(1), lambda: view.__setitem__(0, 0.5)):
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
            write()
    assert base.mul_(2).tolist() == [0.0] * 3  # the base may be written


def test_one_of_several_views_may_be_written_where_nothing_is_recorded():
    x = torch.ones(3)
    first = x.unbind()[0]
    first.mul_(2)
    assert x.tolist() == [2.0, 1.0, 1.0]
    with pytest.raises(RuntimeError, match="returns multiple views"):
        first.mul_(leaf(1))
    with pytest.raises(RuntimeError, match="returns multiple views"):
        (leaf(3) * 2).unbind()[0].mul_(2)


def test_a_view_made_without_grad_is_no_target_with_it():
    x = torch.ones(3)
    with torch.no_grad():
        view = x[:2]
    view.mul_(2)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        view.mul_(leaf(1))
    assert x.tolist() == [2.0, 2.0, 1.0]


@pytest.mark.parametrize("made", ["no_grad", "unbind"])
def test_a_view_whose_base_was_recorded_anew_cannot_tell_its_history(made):
    x = leaf(3) * 1
    if made == "unbind":
        view = x.unbind()[0]
    else:
        with torch.no_grad():
            view = x[:2]
    x.mul_(2)
    for ask in (lambda: view.grad_fn, lambda: view * 2):
        with pytest.raises(RuntimeError, match="modified inplace with grad mode enabled"):
            ask()
    with torch.no_grad():
        assert (view * 1).tolist() in ([2.0, 2.0], 2.0)


def test_a_view_of_a_leaf_written_without_grad_is_no_riddle():
    x = leaf(3)
    with torch.no_grad():
        view = x[:2]
        x.mul_(2)
    assert view.grad_fn is None and view.tolist() == [2.0, 2.0]


def test_operands_that_overlap_the_target_are_refused():
    x = torch.arange(6.0)
    square = torch.arange(9.0).reshape(3, 3)
    writes = [
        lambda: x[1:].add_(x[:-1]),
        lambda: x[1:].copy_(x[:-1]),
        lambda: x.__setitem__(slice(1, None), x[:-1]),
        lambda: torch.sin(x[1:], out=x[:-1]),
        lambda: torch.cumsum(x[1:], 0, out=x[:-1]),
        lambda: square.copy_(square.t()),
        lambda: square.add_(square.t()),
    ]
    for write in writes:
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
            write()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] and square[0].tolist() == [0.0, 1.0, 2.0]
    assert x[::2].add_(x[1::2]).tolist() == [1.0, 5.0, 9.0]  # apart, one between the other
    assert x.add_(x).tolist() == [2.0, 2.0, 10.0, 6.0, 18.0, 10.0]  # the very same


def test_out_stays_in_its_storage_where_there_is_room():
    x = torch.zeros(2, 3)
    row = x[0]
    with pytest.warns(UserWarning, match="was resized"):
        torch.sin(torch.ones(2), out=row)
    assert row.shape == (2,)
    assert x.tolist() == [[pytest.approx(0.8414709), pytest.approx(0.8414709), 0.0], [0.0] * 3]
    with pytest.warns(UserWarning, match="was resized"):
        torch.sin(torch.ones(9), out=row)
    assert row.shape == (9,) and x[1].tolist() == [0.0] * 3


def test_saved_indices_have_no_history():
    y = leaf(3).sort()[0]
    assert not y.grad_fn._saved_indices.requires_grad
    x = leaf(3)
    (g,) = torch.autograd.grad(x.max(0)[0], x, create_graph=True)
    assert not g.requires_grad


def test_nan_in_an_extreme_sends_its_gradient_to_both():
    nan = float("nan")
    for f in (torch.maximum, torch.minimum):
        x, y = torch.tensor([nan, 1.0], requires_grad=True), torch.tensor([2.0, nan], requires_grad=True)
        f(x, y).sum().backward()
        assert x.grad.tolist() == y.grad.tolist() == [1.0, 1.0]


def test_small_things_that_torch_decides():
    x = torch.tensor(True)
    assert x.square().dtype is torch.int64
    scalar = torch.tensor(2.0)
    assert scalar.mT is scalar
    with pytest.raises(IndexError):
        scalar.unbind()
    with pytest.raises(RuntimeError, match="infer output dtype"):
        torch.ones(3, dtype=torch.int64).mean(dim=5)
    assert torch.ones(3, 0, dtype=torch.bool).softmax(0).dtype is torch.bool
    assert torch.nn.functional.layer_norm(torch.ones(3, 0, dtype=torch.bfloat16), (0,)).shape == (3, 0)
    with pytest.raises(NotImplementedError):
        torch.nn.functional.unfold(torch.ones(1, 1, 3, 3, dtype=torch.int64), 2)
