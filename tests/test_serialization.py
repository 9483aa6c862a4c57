"""Files: torch's are read and written, nothing in them is run, a save that fails leaves the old file, a bad file is an
error.
"""

import collections
import copy
import io
import json
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import warnings
import zipfile

import pytest
import stowgrad as torch
from stowgrad.serialization import add_safe_globals, clear_safe_globals, get_unsafe_globals_in_checkpoint, safe_globals

PT = pathlib.Path(__file__).parent / "data" / "pt"
EXPECT = json.loads((PT / "expect.json").read_text())
TORCH = pathlib.Path(__file__).parents[1] / ".venv-torch" / "bin" / "python"
Point = collections.namedtuple("Point", "x y")


class Note:
    """A class of the user's."""

    def __init__(self, text):
        self.text = text


class Grid(torch.Tensor):
    """A tensor class of the user's."""


def saved(obj, **options):
    f = io.BytesIO()
    torch.save(obj, f, **options)
    return f.getvalue()


def through(obj, **options):
    return torch.load(io.BytesIO(saved(obj)), **options)


def assert_as_recorded(got, want, where=""):
    if "data" in want and "stride" in want:
        assert str(got.dtype).rpartition(".")[2] == want["dtype"], where
        assert list(got.shape) == want["shape"] and list(got.stride()) == want["stride"], where
        assert got.requires_grad == want["requires_grad"], where
        assert [float(v) for v in got.detach().double().reshape(-1).tolist()] == [float(v) for v in want["data"]], where
    elif list(want) == ["py"]:
        assert got == want["py"] or list(got) == want["py"], where
    else:
        assert sorted(got) == sorted(want), where
        for key in want:
            assert_as_recorded(got[key], want[key], f"{where}.{key}")


# ---- torch's files


@pytest.mark.parametrize("suffix", ["", "_legacy"])
@pytest.mark.parametrize("name", EXPECT)
@pytest.mark.parametrize("weights_only", [True, False])
def test_files_of_torch_are_read(name, suffix, weights_only):
    got = torch.load(PT / f"{name}{suffix}.pt", weights_only=weights_only)
    assert_as_recorded(got, EXPECT[name], name + suffix)
    if name == "shared_storage":
        assert got["a"].data_ptr() == got["t"].data_ptr()
        got["a"][1, 0] = 100
        assert got["row"][0] == 100


def test_files_name_torch_and_nothing_of_ours():
    data = saved({"w": torch.nn.Parameter(torch.ones(2)), "d": torch.float64, "s": torch.Size([1])})
    pickled = zipfile.ZipFile(io.BytesIO(data)).read("archive/data.pkl")
    assert b"stowgrad" not in pickled
    assert b"ctorch._utils\n_rebuild_tensor_v2\n" in pickled and b"ctorch\nFloatStorage\n" in pickled


def test_the_archive_has_the_records_of_torch_uncompressed_and_aligned():
    archive = zipfile.ZipFile(io.BytesIO(data := saved([torch.ones(3), torch.ones(5, dtype=torch.int8)])))
    names = {name.partition("/")[2] for name in archive.namelist()}
    assert {"data.pkl", "version", "byteorder", "data/0", "data/1", ".data/serialization_id"} <= names
    assert archive.read("archive/version") == b"3\n"
    for info in archive.infolist():
        assert info.compress_type == zipfile.ZIP_STORED
        name, extra = struct.unpack("<HH", data[info.header_offset + 26 : info.header_offset + 30])
        assert (info.header_offset + 30 + name + extra) % 64 == 0


def test_the_same_object_gives_the_same_bytes():
    obj = {"a": torch.arange(3), "b": [1, "x"]}
    assert saved(obj) == saved(obj)


@pytest.mark.skipif(not TORCH.exists(), reason="needs the comparison environment (make torch)")
def test_torch_reads_our_files_and_we_read_its(tmp_path):
    a = torch.arange(12.0).reshape(3, 4)
    torch.save(
        {"a": a, "t": a.t(), "p": torch.nn.Parameter(torch.ones(2)), "h": torch.ones(2, dtype=torch.bfloat16)},
        tmp_path / "ours.pt",
    )
    torch.save([a[1:], torch.tensor(True)], tmp_path / "ours_old.pt", _use_new_zipfile_serialization=False)
    script = f"""
import torch
d = torch.load(r"{tmp_path}/ours.pt")
assert d["t"].stride() == (1, 4) and d["t"].data_ptr() == d["a"].data_ptr()
assert isinstance(d["p"], torch.nn.Parameter) and d["h"].dtype == torch.bfloat16 and d["a"].sum() == 66
assert torch.load(r"{tmp_path}/ours.pt", mmap=True)["a"].sum() == 66
assert torch.load(r"{tmp_path}/ours_old.pt")[0].sum() == 60
torch.save({{"x": torch.nn.Linear(2, 3).state_dict(), "y": torch.arange(5)[::2]}}, r"{tmp_path}/theirs.pt")
"""
    subprocess.run([str(TORCH), "-c", script], check=True, timeout=300, env={**os.environ, "PYTHONPATH": ""})
    got = torch.load(tmp_path / "theirs.pt")
    assert got["x"]["weight"].shape == (3, 2) and got["y"].tolist() == [0, 2, 4] and got["y"].stride() == (2,)


# ---- what comes back


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("new", [True, False])
def test_plain_containers_come_back_equal(protocol, new):
    obj = collections.OrderedDict(
        numbers=[1, -5, 10**30, 1.5, 1j, True, None],
        text="ünï",
        bytes=b"ab\xff",
        array=bytearray(b"xyz"),
        tuples=(1, (2, 3, 4, 5), ()),
        sets=[{1, 2}, frozenset([3])],
        counter=collections.Counter("aab"),
        size=torch.Size([1, 2]),
        dtype=torch.float16,
        device=torch.device("cpu"),
    )
    for weights_only in (True, False):
        got = torch.load(
            io.BytesIO(saved(obj, pickle_protocol=protocol, _use_new_zipfile_serialization=new)),
            weights_only=weights_only,
        )
        assert got == obj and [type(v) for v in got.values()] == [type(v) for v in obj.values()]


def test_strides_offsets_and_sharing_are_kept():
    a = torch.arange(24.0).reshape(4, 6)
    got = through({"a": a, "t": a.t(), "part": a[1:3, ::2], "same": a, "empty": torch.empty(0, 3)})
    assert got["a"] is got["same"]
    assert got["part"].stride() == (6, 2) and got["part"].storage_offset() == 6
    assert got["empty"].shape == (0, 3)
    got["a"].zero_()
    assert got["t"].sum() == 0 and got["part"].sum() == 0


@pytest.mark.parametrize(
    "name", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_every_dtype_comes_back_bit_for_bit(name):
    x = torch.arange(7).to(getattr(torch, name))
    got = through(x)
    assert got.dtype == x.dtype and torch.equal(got, x)


def test_requires_grad_and_attributes_are_kept_and_the_graph_is_not():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.note = "mine"
    got = through([x, y])
    assert got[0].requires_grad and got[0].is_leaf
    assert got[1].requires_grad and got[1].is_leaf and got[1].note == "mine" and got[1].tolist() == [2, 2]


def test_parameters_and_state_dicts_come_back():
    model = torch.nn.Linear(2, 3)
    got = through({"p": model.weight, "state": model.state_dict()})
    assert isinstance(got["p"], torch.nn.Parameter) and torch.equal(got["p"], model.weight)
    assert type(got["state"]) is collections.OrderedDict
    assert got["state"]._metadata == model.state_dict()._metadata
    model.load_state_dict(got["state"])


def test_hooks_are_left_behind_with_a_warning_unless_marked():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda g: g)
    with pytest.warns(UserWarning, match="will not be serialized"):
        assert not through(x)._backward_hooks
    y = torch.ones(2, requires_grad=True)
    y.register_hook(torch.utils.hooks.unserializable_hook(lambda g: g))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        through(y)


def test_one_storage_under_two_dtypes_is_refused():
    a = torch.ones(4)
    with pytest.raises(RuntimeError, match="view the same data as different types"):
        saved([a, a.view(torch.int32)])


def test_paths_pathlike_and_files_are_taken(tmp_path):
    x = torch.arange(3)
    for target in (tmp_path / "a.pt", str(tmp_path / "b.pt"), os.fsencode(tmp_path / "c.pt")):
        torch.save(x, target)
        assert torch.equal(torch.load(target), x)
    with open(tmp_path / "d.pt", "w+b") as f:
        torch.save(x, f)
        f.seek(0)
        assert torch.equal(torch.load(f), x)
    assert torch.equal(torch.load(tmp_path / "a.pt", mmap=True), x)
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "none.pt")
    with pytest.raises(RuntimeError, match=r"Parent directory .* does not exist"):
        torch.save(x, tmp_path / "nowhere" / "x.pt")
    with pytest.raises(AttributeError, match="'write'"):
        torch.save(x, 3)
    with pytest.raises(AttributeError, match="seek"):
        torch.load(3)


def test_a_mapped_file_can_be_written_to_in_memory_without_changing_it(tmp_path):
    torch.save(torch.zeros(1000), tmp_path / "x.pt")
    before = (tmp_path / "x.pt").read_bytes()
    x = torch.load(tmp_path / "x.pt", mmap=True)
    x += 1
    assert x.sum() == 1000 and (tmp_path / "x.pt").read_bytes() == before


# ---- nothing in a file is run


def test_a_class_is_refused_by_name_unless_it_is_allowed():
    data = saved({"note": Note("hello")})
    full = f"{Note.__module__}.Note"
    with pytest.raises(pickle.UnpicklingError, match=f"GLOBAL {full}"):
        torch.load(io.BytesIO(data))
    assert get_unsafe_globals_in_checkpoint(io.BytesIO(data)) == [full]
    with safe_globals([Note]):
        assert torch.load(io.BytesIO(data))["note"].text == "hello"
    with pytest.raises(pickle.UnpicklingError):
        torch.load(io.BytesIO(data))
    add_safe_globals([Note])
    try:
        assert torch.load(io.BytesIO(data))["note"].text == "hello"
    finally:
        clear_safe_globals()
    assert torch.load(io.BytesIO(data), weights_only=False)["note"].text == "hello"


def test_a_tensor_class_is_refused_unless_it_is_allowed():
    data = saved(torch.ones(2).as_subclass(Grid))
    with pytest.raises(pickle.UnpicklingError, match="Grid"):
        torch.load(io.BytesIO(data))
    with safe_globals([Grid]):
        assert type(torch.load(io.BytesIO(data))) is Grid
    assert type(torch.load(io.BytesIO(data), weights_only=False)) is Grid


class Evil:
    def __init__(self, func, *args):
        self.call = (func, args)

    def __reduce__(self):
        return self.call


def archive_of(pickled, records=(), **info):
    f = io.BytesIO()
    with zipfile.ZipFile(f, "w") as z:
        z.writestr("archive/data.pkl", pickled)
        for name, content in records:
            z.writestr(f"archive/{name}", content)
    return f.getvalue()


@pytest.mark.parametrize(
    "func, args", [(os.system, ("true",)), (eval, ("1",)), (getattr, (1, "real")), (exec, ("",)), (__import__, ("os",))]
)
def test_calls_in_a_file_are_refused_by_name_and_not_made(func, args):
    pickled = pickle.dumps(Evil(func, *args), 2)
    name = func.__name__
    for data in (archive_of(pickled), saved_old(pickled)):
        with pytest.raises(pickle.UnpicklingError, match=name):
            torch.load(io.BytesIO(data))


def saved_old(pickled):
    head = b"".join(pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    return head + pickled + pickle.dumps([], 2)


def op(text):
    return text.encode("latin1")


HOSTILE = {
    "attributes set on a class": op("\x80\x02ctorch.nn.parameter\nParameter\n}X\x01\x00\x00\x00aK\x01sb."),
    "attributes set on a function": op("\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00aK\x01sb."),
    "methods of a dictionary replaced": op("\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00itemsK\x01sb."),
    "a bytearray of a terabyte": op("\x80\x02c__builtin__\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R."),
    "a memo of four billion entries": op("\x80\x02Nr\xff\xff\xff\xff0."),
    "a string of four gigabytes": op("\x80\x02X\xff\xff\xff\xffabc."),
    "bytes of eighteen exabytes": op("\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc."),
    "a frame of eighteen exabytes": op("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN."),
    "an unknown opcode": op("\x80\x02\xffN."),
    "more taken than put": op("\x80\x02\x86."),
    "no end": op("\x80\x02]"),
    "an unknown protocol": op("\x80\x63N."),
    "a call of a list": op("\x80\x02])R."),
    "an object of a dtype": op("\x80\x02ctorch\nfloat32\n)\x81."),
    "a set of a number": op("\x80\x02c__builtin__\nset\nK\x01\x85R."),
    "a size of strings": op("\x80\x02ctorch\nSize\nX\x01\x00\x00\x00a\x85\x85R."),
    "a list as a key": op("\x80\x02}]K\x01s."),
    "an extension code": op("\x80\x02\x82\x01."),
    "a key that takes for ever to hash": op("\x80\x02}" + "))\x86" + "2\x86" * 200 + "K\x01s."),
    "a set that takes for ever to hash": op("\x80\x02c__builtin__\nset\n(]))\x86" + "2\x86" * 200 + "atR."),
    "a tensor without storage": op("\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))tR."),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_unpickling_errors(name):
    before = dict(vars(torch.nn.Parameter))
    with pytest.raises(pickle.UnpicklingError):
        torch.load(io.BytesIO(archive_of(HOSTILE[name])))
    assert dict(vars(torch.nn.Parameter)) == before


def tensor_pickle(numel, offset, size, stride):
    """A pickle of one float tensor with these claims, over storage "0"."""

    def number(n):
        return b"\x8a\x08" + struct.pack("<q", n)

    def numbers(ns):
        return b"(" + b"".join(map(number, ns)) + b"t"

    pid = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + number(numel) + b"tQ"
    )
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + pid + number(offset) + numbers(size) + numbers(stride)
        + b"\x89ccollections\nOrderedDict\n)RtR."
    )  # fmt: skip


@pytest.mark.parametrize(
    "claims",
    [
        (10**15, 0, (4,), (1,)),
        (5, 0, (4,), (1,)),
        (4, 1, (4,), (1,)),
        (4, 0, (2, 3), (3, 1)),
        (4, 0, (4,), (2,)),
        (4, -1, (2,), (1,)),
        (4, 0, (-1,), (1,)),
        (4, 0, (2,), (-1,)),
        (4, 0, (2**40, 2**40), (0, 0)),
        (4, 0, (2, 2), (1,)),
        (-1, 0, (1,), (1,)),
    ],
)
def test_a_tensor_outside_its_storage_is_an_error(claims):
    good = archive_of(tensor_pickle(4, 0, (2, 2), (2, 1)), [("data/0", b"\0" * 16)])
    assert torch.load(io.BytesIO(good)).shape == (2, 2)
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        torch.load(io.BytesIO(archive_of(tensor_pickle(*claims), [("data/0", b"\0" * 16)])))


def test_a_small_file_that_claims_much_is_refused_without_allocating():
    """A header that lies, and zeros that unpack to more than is claimed: neither may cost memory."""
    resource = pytest.importorskip("resource")
    lying = archive_of(tensor_pickle(2**36, 0, (4,), (1,)), [("data/0", b"\0" * 16)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RuntimeError, match="damaged"):
        torch.load(io.BytesIO(lying))
    old = saved_old(b"\x80\x02" + tensor_pickle(2**36, 0, (4,), (1,))[2:])
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        torch.load(io.BytesIO(old))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_compressed_archives_are_read_and_bombs_are_not():
    f = io.BytesIO()
    with zipfile.ZipFile(f, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("archive/data.pkl", tensor_pickle(4, 0, (2, 2), (2, 1)))
        z.writestr("archive/data/0", struct.pack("<4f", 1, 2, 3, 4))
    assert torch.load(io.BytesIO(f.getvalue())).tolist() == [[1, 2], [3, 4]]


def test_every_truncation_is_a_clear_error():
    for new in (True, False):
        data = saved({"a": torch.arange(20.0), "b": ["x"] * 3}, _use_new_zipfile_serialization=new)
        for n in range(0, len(data), 7):
            with pytest.raises((RuntimeError, pickle.UnpicklingError, EOFError)) as e:
                torch.load(io.BytesIO(data[:n]))
            assert str(e.value)


def test_damaged_bytes_give_errors_and_never_crashes():
    rng = random.Random(0)
    for new in (True, False):
        data = saved({"a": torch.arange(20.0), "b": (1, 2.5, "x")}, _use_new_zipfile_serialization=new)
        for _ in range(500):
            bad = bytearray(data)
            for _ in range(rng.choice((1, 2, 4))):
                bad[rng.randrange(len(bad))] = rng.randrange(256)
            try:
                torch.load(io.BytesIO(bytes(bad)))
            except (RuntimeError, pickle.UnpicklingError, EOFError) as e:
                assert str(e)


def test_a_changed_byte_of_a_tensor_is_found():
    data = bytearray(saved(torch.arange(100.0)))
    data[data.index(struct.pack("<3f", 40, 41, 42))] ^= 1
    with pytest.raises(RuntimeError, match="checksum"):
        torch.load(io.BytesIO(bytes(data)))


@pytest.mark.parametrize("content", [b"hello world", b"PK\x03\x04", b"\x80\x02N.", b"{}" * 200])
def test_other_files_are_named_as_such(content):
    with pytest.raises((RuntimeError, pickle.UnpicklingError)):
        torch.load(io.BytesIO(content))
    with pytest.raises(EOFError, match="empty"):
        torch.load(io.BytesIO(b""))


def test_kinds_that_are_left_out_are_named():
    pickled = tensor_pickle(4, 0, (4,), (1,)).replace(b"FloatStorage", b"ComplexFloatStorage")
    with pytest.raises(pickle.UnpicklingError, match=r"ComplexFloatStorage.*stowgrad does not have"):
        torch.load(io.BytesIO(archive_of(pickled, [("data/0", b"\0" * 32)])))


def test_a_tensor_of_another_device_needs_map_location():
    pickled = tensor_pickle(4, 0, (4,), (1,)).replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    data = archive_of(pickled, [("data/0", struct.pack("<4f", 1, 2, 3, 4))])
    with pytest.raises(RuntimeError, match=r"(?s)cuda:0.*map_location"):
        torch.load(io.BytesIO(data))
    for where in ("cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda storage, location: storage):
        assert torch.load(io.BytesIO(data), map_location=where).tolist() == [1, 2, 3, 4]


def test_big_endian_files_are_turned_around():
    data = archive_of(
        tensor_pickle(4, 0, (4,), (1,)), [("data/0", struct.pack(">4f", 1, 2, 3, 4)), ("byteorder", b"big")]
    )
    assert torch.load(io.BytesIO(data)).tolist() == [1, 2, 3, 4]


# ---- a save that fails leaves the old file


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("not this one")


def test_an_object_that_does_not_pickle_leaves_the_old_file(tmp_path):
    torch.save(torch.ones(2), tmp_path / "x.pt")
    with pytest.raises(RuntimeError, match="not this one"):
        torch.save([torch.zeros(2), Unpicklable()], tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt").tolist() == [1, 1] and os.listdir(tmp_path) == ["x.pt"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    pytest.importorskip("resource")
    script = f"""
import resource, signal, stowgrad as torch
torch.save(torch.ones(2), r"{tmp_path}/x.pt")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    torch.save(torch.zeros(1_000_000), r"{tmp_path}/x.pt")
except OSError as e:
    print("OSError", e.errno)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.startswith("OSError")
    assert torch.load(tmp_path / "x.pt").tolist() == [1, 1] and os.listdir(tmp_path) == ["x.pt"]


def test_a_save_over_a_link_keeps_the_link_and_the_mode(tmp_path):
    torch.save(1, tmp_path / "real.pt")
    os.chmod(tmp_path / "real.pt", 0o640)
    os.symlink(tmp_path / "real.pt", tmp_path / "link.pt")
    torch.save(2, tmp_path / "link.pt")
    assert os.path.islink(tmp_path / "link.pt") and torch.load(tmp_path / "real.pt") == 2
    assert os.stat(tmp_path / "real.pt").st_mode & 0o777 == 0o640


# ---- plain pickles and copies


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_tensors_pickle_with_strides_and_attributes(protocol):
    a = torch.arange(6.0).reshape(2, 3)
    a.note = "mine"
    b = torch.ones(2, requires_grad=True)
    data = pickle.dumps([a, a.t(), b, torch.empty(0)], protocol)
    got = pickle.loads(data)
    assert b"stowgrad" in data and got[0].note == "mine" and got[1].stride() == (1, 3)
    assert got[2].requires_grad and torch.equal(got[0], a) and got[3].shape == (0,)


def test_deep_copies_share_among_themselves_and_not_with_the_originals():
    a = torch.arange(4.0)
    b = a[1:3]
    c, d = copy.deepcopy([a, b])
    d[0] = 7
    assert c.tolist() == [0, 7, 2, 3] and a.tolist() == [0, 1, 2, 3] and d.storage_offset() == 1


def test_a_deep_copy_is_a_leaf_with_its_gradient_and_attributes():
    x = torch.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    x.note = [1]
    y = copy.deepcopy(x)
    assert y.is_leaf and y.requires_grad and y.grad.tolist() == [3, 3] and y.grad is not x.grad
    assert y.note == [1] and y.note is not x.note
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)
