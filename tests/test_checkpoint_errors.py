"""What would be a wrong gradient is an error that names the operation and its place; nothing else is one."""

from __future__ import annotations

import inspect
import math

import pytest
import stowgrad as torch
from frames import Counting, ck, leaf
from stowgrad.utils.checkpoint import CheckpointError, set_checkpoint_debug_enabled


def line_of(text):
    """`file:line` of the line of this file that holds `text`, marked there by a comment."""
    source = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    (number,) = [i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {text}")]
    return f"{__file__}:{number}"


def backward_error(y):
    with pytest.raises(RuntimeError) as e:
        y.sum().backward()
    return str(e.value)


class TestCapturedReads:
    def test_a_leaf_written_since(self):
        w = leaf(2.0)
        y = ck(lambda t: (t * w).sin(), leaf(3.0))
        with torch.no_grad():
            w.mul_(10.0)
        text = backward_error(y)
        assert "read from outside (input 'other' of mul" in text
        assert "at version 1, expected version 0" in text

    def test_a_computed_tensor_written_since_names_the_line_of_the_read(self):
        w = leaf(2.0) * 1.0

        def f(t):
            s = t + w  # the read
            return s.sin()

        y = ck(f, leaf(3.0))
        w.mul_(10.0)
        text = backward_error(y)
        assert f"input 'other' of add, at {line_of('the read')}" in text
        assert "shape [1]" in text

    def test_a_constant_written_since(self):
        c = torch.tensor([2.0])
        y = ck(lambda t: (t + c).sin(), leaf(3.0))
        c.add_(1.0)
        with pytest.raises(CheckpointError, match="changed in place after the forward pass"):
            y.sum().backward()

    def test_a_view_written_through_another_view(self):
        c = torch.zeros(4)
        y = ck(lambda t: (t + c[:2]).sin(), leaf(1.0, 2.0))
        c.view(2, 2)[0, 1] = 5.0
        with pytest.raises(CheckpointError, match="read from outside"):
            y.sum().backward()

    def test_what_was_not_read_may_be_written(self):
        unread, c = torch.zeros(2), torch.ones(2)
        x = leaf(1.0, 2.0)
        y = ck(lambda t: (t + c).sin().exp(), x)
        unread.add_(1.0)
        y.sum().backward()
        assert x.grad is not None

    def test_the_regions_own_writes_are_its_own(self):
        count = torch.zeros(1)

        def f(t):
            count.add_(1.0)
            return (t * 1.0).sin().exp()

        x = leaf(1.0)
        (ck(f, x) + ck(f, x)).sum().backward()
        # the write is the user's: it happens in each of the four runs
        assert count.item() == 4.0

    def test_unrecorded_reads_are_seen_by_their_values(self):
        bound = torch.tensor([0.5, 0.5])

        def f(t):
            return (t * (t > bound)).exp()

        x = leaf(0.3, 0.7)
        y = ck(f, x, determinism_check="values")
        bound.fill_(0.0)
        with pytest.raises(CheckpointError, match="gave other values than the forward pass, first at position 0: .* saved by mul"):
            y.sum().backward()

    def test_none_checks_nothing(self):
        w = leaf(2.0)
        x = leaf(3.0)
        y = ck(lambda t: (t.sin() + w).exp(), x, determinism_check="none")
        with torch.no_grad():
            w.mul_(2.0)
        y.sum().backward()
        assert math.isclose(x.grad.item(), math.cos(3.0) * math.exp(math.sin(3.0) + 4.0), rel_tol=1e-6)


def test_an_argument_written_since_is_the_version_error():
    x = leaf(3.0)
    h = x * 1.0
    y = ck(lambda t: (t + 1.0).sin(), h)
    h.mul_(10.0)
    text = backward_error(y)
    assert "modified by an inplace operation" in text
    assert "_saved_argument of checkpoint is at version 1; expected version 0" in text


def test_a_value_overwritten_inside_is_the_error_of_plain_code():
    def f(t):
        y = t * 1.0
        z = y.sin()
        y.add_(1.0)  # the overwrite
        return z.exp() + y.exp()

    plain = backward_error(f(leaf(3.0)))
    framed = backward_error(ck(f, leaf(3.0)))
    for text in (plain, framed):
        assert "modified by an inplace operation: the tensor of shape [1]" in text
        assert "_saved_self of SinBackward0" in text
        assert "at version 1; expected version 0" in text
    assert "in a checkpointed region" in framed


def test_version_errors_name_the_maker_and_both_lines():
    h = leaf(1.0, 2.0).sigmoid()
    z = (h * h).sum()  # the save
    h.add_(1)  # the write
    text = backward_error(z)
    assert "the tensor of shape [2], which is output 0 of AddBackward0, saved as" in text
    assert line_of("the save") in text
    assert line_of("the write") in text
    e = leaf(1.0).exp()
    e.add_(1)
    assert "which is output 0 of ExpBackward0" in backward_error(e)


class TestMismatches:
    def other_operations(self):
        k = []

        def f(t):
            k.append(1)
            if len(k) == 1:
                return t.sin().exp()
            return t.cos() + t.cos()  # another operation

        return f

    def test_other_operations_of_the_same_shapes(self):
        y = ck(self.other_operations(), leaf(0.3, 0.6))
        text = backward_error(y)
        assert "ran other operations than the forward pass: at position 0 it saved self saved by cos, of shape [2]" in text
        assert f"at {line_of('another operation')}" in text
        assert "the forward pass saved self saved by sin" in text
        assert "debug=True" in text

    def test_other_shapes_and_dtypes(self):
        k = []

        def f(t):
            k.append(1)
            if len(k) == 1:
                return t.sin().exp()
            return t[:1].sin().exp()  # another shape

        text = backward_error(ck(f, leaf(0.3, 0.6)))
        assert "Recomputed values for the following tensors have different metadata" in text
        assert "saved metadata: sin, shape [2], dtype float32" in text
        assert "recomputed metadata: sin, shape [1], dtype float32" in text
        assert line_of("another shape") in text

    def test_fewer_saves(self):
        k = []

        def f(t):
            k.append(1)
            y = t.sin()
            return y.exp() if len(k) == 1 else y

        text = backward_error(ck(f, leaf()))
        assert "A different number of tensors was saved" in text
        assert "during forward: 2" in text
        assert "during recomputation: 1" in text

    def test_more_saves_are_met_only_by_a_run_to_the_end(self):
        def f(k):
            def run(t):
                k.append(1)
                y = t.sin().exp()
                return y if len(k) == 1 else (y * t).exp()

            return run

        x = leaf()
        ck(f([]), x).sum().backward()
        assert "saved during recomputation: 5" in backward_error(ck(f([]), x, early_stop=False))

    def test_user_code_cannot_swallow_it(self):
        k = []

        def f(t):
            k.append(1)
            try:
                return t.sin().exp() if len(k) == 1 else t.cos().exp()
            except BaseException:
                return t.exp()

        assert "ran other operations" in backward_error(ck(f, leaf()))

    def test_other_values_are_found_where_they_begin(self):
        k = []

        def f(t):
            k.append(1)
            return (t.sin() * float(len(k))).exp().cos()

        text = backward_error(ck(f, leaf(), determinism_check="values"))
        # sin saves t, exp its result: the number is no saved value
        assert "gave other values than the forward pass, first at position 1: result saved by exp, of shape [4] and dtype float32" in text

    def test_random_numbers_without_their_state_are_other_values(self):
        def f(t):
            return (t * torch.rand(4)).exp()

        x = leaf()
        ck(f, x, determinism_check="values").sum().backward()
        text = backward_error(ck(f, x, determinism_check="values", preserve_rng_state=False))
        assert "random without preserve_rng_state" in text

    def test_debug_lists_both_runs_with_their_lines(self):
        k = []

        def f(t):
            k.append(1)
            y = t.sin()  # first operation
            return y.exp() if len(k) == 1 else y.cos()  # second operation

        for make in (lambda: ck(f, leaf(), debug=True), lambda: with_debug(f)):
            k.clear()
            text = backward_error(make())
            first, second = text.split("Saved during the forward pass:")[1].split("Saved during the recomputation:")
            for run in (first, second):
                assert f"self saved by sin, of shape [4] and dtype float32  at {line_of('first operation')}" in run
            assert f"result saved by exp, of shape [4] and dtype float32  at {line_of('second operation')}" in first
            assert f"self saved by cos, of shape [4] and dtype float32  at {line_of('second operation')}" in second

    def test_a_list_of_checks_is_closed(self):
        with pytest.raises(ValueError, match="determinism_check should be one of"):
            ck(torch.sin, leaf(), determinism_check="maybe")
        with pytest.raises(TypeError, match="must be callable, not int"):
            ck(3, leaf())


def with_debug(f):
    with set_checkpoint_debug_enabled(True):
        return ck(f, leaf())


def test_an_unpack_hook_around_a_frame_is_held_to_shape_and_dtype():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:1]):
        y = ck(lambda t: t.sin().exp(), leaf(0.5, 0.6) * 1.0)
    text = backward_error(y)
    assert "checkpoint: unpacking the saved value argument gave a tensor of shape [1]" in text


def test_values_are_compared_bit_for_bit_and_runs_are_counted():
    f = Counting(lambda t: torch.nn.functional.dropout(t.sin().exp(), 0.5, True) * t)
    x = leaf()
    ck(f, x, determinism_check="values").sum().backward()
    assert f.runs == 2
