"""Python's numbers, numpy's arrays and other buffers become tensors and come back, with torch's dtypes, errors and sharing."""

import array
import collections
import gc
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest
import stowgrad as torch
from stowgrad import _C


@pytest.mark.parametrize(
    ("data", "values", "dtype"),
    [
        (1.5, 1.5, torch.float32),
        (True, True, torch.bool),
        (3, 3, torch.int64),
        ([], [], torch.float32),
        ([[], []], [[], []], torch.float32),
        ([True, 2], [1, 2], torch.int64),
        ([1, 2.5, True], [1.0, 2.5, 1.0], torch.float32),
        ([[1, 2], (3, 4)], [[1, 2], [3, 4]], torch.int64),
        (range(3), [0, 1, 2], torch.int64),
        (collections.deque([1, 2]), [1, 2], torch.int64),
        (array.array("f", [1, 2]), [1.0, 2.0], torch.float32),
        (memoryview(b"ab"), [97, 98], torch.int64),
        (np.float64(1.5), 1.5, torch.float64),
        (np.float32(1.5), 1.5, torch.float32),
        (np.int32(3), 3, torch.int32),
        (np.bool_(True), True, torch.bool),
        ([np.float32(1.5), 2], [1.5, 2.0], torch.float32),
        ([np.int32(3), 2], [3, 2], torch.int64),
        ([np.array([1.5]), np.array([2.0])], [[1.5], [2.0]], torch.float64),
        (np.arange(4, dtype=np.int8).reshape(2, 2).T, [[0, 2], [1, 3]], torch.int8),
        (np.ones((2, 0), np.float16), [[], []], torch.float16),
        ([torch.tensor(1.0), torch.tensor(2)], [1.0, 2.0], torch.float32),
    ],
)
def test_dtype_and_values_are_inferred(data, values, dtype):
    t = torch.tensor(data)
    assert (t.tolist(), t.dtype, t.is_leaf) == (values, dtype, True)


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        ("abc", TypeError, "invalid data type 'str'"),
        ([1, "a"], TypeError, "invalid data type 'str'"),
        (["a"], ValueError, "too many dimensions 'str'"),
        (b"ab", TypeError, "invalid data type 'bytes'"),
        (object(), RuntimeError, "Could not infer dtype of object"),
        (None, RuntimeError, "Could not infer dtype of NoneType"),
        ([1, None], RuntimeError, "Could not infer dtype of NoneType"),
        ({}, RuntimeError, "Could not infer dtype of dict"),
        ([[1, 2], [3]], ValueError, r"expected sequence of length 2 at dim 1 \(got 1\)"),
        ([[[1, 2]], [[3]]], ValueError, r"expected sequence of length 2 at dim 2 \(got 1\)"),
        ([[1, 2], 3], TypeError, "not a sequence"),
        ([1, [2]], TypeError, "cannot be interpreted as"),
        ([2**63], ValueError, "Overflow when unpacking long long"),
        (np.array(["a"]), TypeError, "can't convert np.ndarray of type numpy.str_"),
        (np.ones(2, ">f4"), ValueError, "byte order"),
        (np.ones(3)[::-1], ValueError, "negative"),
    ],
)
def test_what_is_no_tensor_is_refused(data, kind, text):
    with pytest.raises(kind, match=text):
        torch.tensor(data)


@pytest.mark.parametrize(
    ("value", "dtype", "result"),
    [
        (1.5, torch.int32, 1),
        (-1, torch.uint8, 255),
        (float("nan"), torch.bool, True),
        (1e10, torch.float16, float("inf")),
        (2**63, torch.float64, 2.0**63),
        (3, float, 3.0),
    ],
)
def test_a_dtype_that_is_given_is_used(value, dtype, result):
    assert torch.tensor([value], dtype=dtype).tolist() == [result]


@pytest.mark.parametrize(("value", "dtype"), [(300, torch.int8), (256, torch.uint8), (1e10, torch.int32), (float("inf"), torch.int64)])
def test_a_value_out_of_range_is_an_error(value, dtype):
    with pytest.raises(RuntimeError, match="cannot be converted to type .* without overflow"):
        torch.tensor(value, dtype=dtype)


def test_memory_of_numpy_is_shared_both_ways():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = torch.from_numpy(a.T)
    assert (t.shape, t.stride(), t.data_ptr()) == ((3, 2), (1, 3), a.ctypes.data)
    t.add_(1)
    a[0, 0] = 7
    assert t[0, 0].item() == 7.0
    assert a[1, 2] == 6.0
    n = torch.ones(2, 3).t().numpy()
    assert (n.strides, n.flags.writeable, n.flags.owndata) == ((4, 12), True, False)
    t = torch.zeros(3)
    n = t.numpy()
    n[1] = 5
    assert t.tolist() == [0.0, 5.0, 0.0]


def test_an_array_outlives_the_tensor_and_the_tensor_the_array():
    n = torch.arange(1000.0).numpy()
    a = np.arange(1000.0)
    t, gone = torch.from_numpy(a), weakref.ref(a)
    del a
    gc.collect()
    assert gone() is not None
    assert (n.sum(), t.sum().item()) == (499500.0, 499500.0)
    del t
    gc.collect()
    assert gone() is None


def test_a_read_only_array_is_read_only():
    a = np.ones(3)
    a.flags.writeable = False
    t = torch.as_tensor(a)
    with pytest.raises(RuntimeError, match="read-only"):
        t.add_(1)
    assert not t.numpy().flags.writeable
    assert (t + 1).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: torch.from_numpy([1]), TypeError, r"expected np.ndarray \(got list\)"),
        (lambda: torch.ones(2, dtype=torch.bfloat16).numpy(), TypeError, "Got unsupported ScalarType BFloat16"),
        (lambda: torch.ones(2, requires_grad=True).numpy(), RuntimeError, r"Use tensor.detach\(\).numpy\(\) instead"),
        (lambda: torch.frombuffer(b"abc", dtype=torch.int16), ValueError, "multiple of element size"),
    ],
)
def test_what_cannot_be_shared_is_refused(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_numpys_functions_take_tensors():
    t = torch.tensor([1.0, 2.0])
    assert np.asarray(t).tolist() == [1.0, 2.0]
    assert np.asarray(t, dtype="f8").dtype == np.float64
    assert np.shares_memory(np.asarray(t), t.numpy())
    assert isinstance(np.sin(t), torch.Tensor)
    assert (np.float64(2) * t).tolist() == (np.float32(2) * t).tolist() == [2.0, 4.0]
    assert (t * np.ones(2)).dtype == torch.float64
    with pytest.raises(TypeError):
        np.ones(2) * t
    assert t.numpy(force=True).tolist() == [1.0, 2.0]


def test_whatever_describes_itself_as_an_array_is_one():
    class Described:
        def __array__(self, dtype=None, copy=None):
            return np.array([1, 2], dtype=np.int16)

    assert torch.tensor(Described()).dtype == torch.int16
    assert torch.as_tensor(Described()).tolist() == [1, 2]


def test_as_tensor_copies_only_where_it_must():
    t = torch.ones(2)
    a = np.ones(2)
    assert torch.as_tensor(t) is t
    assert torch.as_tensor(t, dtype=torch.float64) is not t
    assert torch.as_tensor(a).data_ptr() == a.ctypes.data
    assert torch.asarray(a, copy=True).data_ptr() != a.ctypes.data
    assert torch.as_tensor(a, dtype=torch.float32).tolist() == [1.0, 1.0]


def test_bytes_are_seen_as_elements():
    b = bytearray(b"abcd")
    t = torch.frombuffer(b, dtype=torch.int8, offset=1, count=2)
    t[0] = 65
    assert bytes(b) == b"aAcd"
    with pytest.raises(BufferError):
        b.append(1)
    del t
    gc.collect()
    b.append(1)


def test_storages_show_the_bytes():
    t = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    s = t[1].untyped_storage()
    assert (s.nbytes(), len(s), s.data_ptr()) == (16, 16, t.data_ptr())
    assert bytes(s) == memoryview(s).tobytes() == t.numpy().tobytes()
    u = _C._tensor_from_storage(s, torch.float32, (2, 2), (1, 2), 0)
    assert u.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert u.untyped_storage() == s
    with pytest.raises(RuntimeError, match="out of bounds"):
        _C._tensor_from_storage(s, torch.float32, (5,), (1,), 0)
    copy = pickle.loads(pickle.dumps(s))
    assert bytes(copy) == bytes(s)
    assert copy != s
    assert s.resize_(16) is s
    with pytest.raises(RuntimeError, match="not resizable"):
        s.resize_(32)


def test_the_old_constructor():
    assert torch.Tensor(2, 3).shape == (2, 3)
    assert torch.Tensor([1, 2]).tolist() == [1.0, 2.0]
    assert torch.Tensor().shape == (0,)
    assert torch.Tensor(torch.Size([2])).shape == (2,)
    with pytest.raises(TypeError, match=r"data must be a sequence \(got float\)"):
        torch.Tensor(3.5)


def test_casts_and_devices():
    t = torch.tensor([0.0, 1.5])
    assert t.to(torch.float32) is t
    assert t.to("cpu") is t.cpu() is t
    assert (t.long().dtype, t.bool().tolist(), t.half().dtype) == (torch.int64, [False, True], torch.float16)
    assert t.to(torch.tensor(1)).dtype == t.type("torch.LongTensor").dtype == torch.int64
    assert t.type() == "torch.FloatTensor"
    assert t.to(torch.float64, copy=True).dtype == torch.float64
    for call in (lambda: t.to("nowhere"), lambda: t.to("cuda"), lambda: torch.zeros(1, device="cuda")):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(TypeError):
        t.to(torch.float32, "x")


def test_numpy_is_loaded_only_when_asked_for():
    code = "import sys, stowgrad as t; t.tensor([1.0]) * 2; t.tensor([[1, 2]])[0]; assert 'numpy' not in sys.modules; t.ones(1).numpy(); assert 'numpy' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
