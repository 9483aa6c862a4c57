"""A reader of pickles that can only build plain data.

It is a machine of its own, not the interpreter's unpickler with a filter: it knows the opcodes that data needs, looks
globals up in the table it is given, calls nothing else, and sets attributes on nothing but what that table says.
Invariants: memory used is proportional to the length of the input (lengths are checked against what is left before
anything is made; the memo is a dictionary, so an index costs nothing); whatever is wrong is a
`pickle.UnpicklingError`.
"""

from __future__ import annotations

from collections import OrderedDict
from pickle import UnpicklingError
from struct import unpack_from

_HANDLERS: dict = {}


def _opcode(code: bytes):
    def register(method):
        _HANDLERS[code[0]] = method
        return method

    return register


_SCALARS = frozenset((str, int, float, bool, bytes, type(None), complex))
_LARGEST_KEY = 4096


def as_key(item):
    """`item`, if it may be hashed. Tuples that hold each other in many ways would take for ever: they are refused."""
    if type(item) not in _SCALARS:
        waiting, seen = [item], 0
        while waiting:
            part = waiting.pop()
            seen += 1
            if seen > _LARGEST_KEY:
                raise UnpicklingError(f"a key of a container has more than {_LARGEST_KEY} parts: refused")
            if type(part) is tuple:
                waiting.extend(part)
    return item


class Allowed:
    """What the machine may do with one global: `value` stands for it on the stack, `call` runs on REDUCE, `new` on
    NEWOBJ, `build` on BUILD.
    """

    __slots__ = ("build", "call", "name", "new", "value")

    def __init__(self, name: str, value=None, call=None, new=None, build=None) -> None:
        self.name = name
        self.value = value
        self.call = call
        self.new = new
        self.build = build


class Unpickler:
    """Reads one pickle at a time from `data`. `find(module, name)` gives the Allowed of a global or raises
    UnpicklingError.

    `persistent_load(pid)` turns persistent ids into objects. `builders` maps exact types to functions `(obj, state)`
    for BUILD.
    """

    def __init__(self, data, find, persistent_load=None, builders=None, encoding: str = "utf-8") -> None:
        self.data = memoryview(data)
        self.end = len(self.data)
        self.pos = 0
        self.find = find
        self.persistent_load = persistent_load
        self.builders = builders or {}
        self.encoding = encoding

    def load(self):
        """The next object. UnpicklingError for what is refused, damaged or cut short."""
        self.stack: list = []
        self.marks: list = []
        self.memo: dict = {}
        data, handlers = self.data, _HANDLERS
        try:
            while True:
                if self.pos >= self.end:
                    raise UnpicklingError("the pickle ends before its last opcode: the file is cut short")
                code = data[self.pos]
                self.pos += 1
                if code == 0x2E:  # STOP
                    break
                handler = handlers.get(code)
                if handler is None:
                    raise UnpicklingError(
                        f"opcode {bytes([code])!r} at byte {self.pos - 1} is not one that data needs: refused"
                    )
                handler(self)
            if len(self.stack) != 1 or self.marks:
                raise UnpicklingError("the pickle leaves other than one object: the file is damaged")
            return self._plain(self.stack.pop())
        except (IndexError, KeyError, TypeError, ValueError, OverflowError) as e:
            raise UnpicklingError(f"the pickle is damaged near byte {self.pos}: {type(e).__name__}: {e}") from e

    # -- reading

    def take(self, n: int) -> memoryview:
        start, stop = self.pos, self.pos + n
        if n < 0 or stop > self.end:
            raise UnpicklingError(
                f"an item of {n} bytes at byte {start} goes beyond the end ({self.end}): the file is cut short"
            )
        self.pos = stop
        return self.data[start:stop]

    def number(self, form: str, size: int):
        return unpack_from(form, self.take(size))[0]

    def line(self) -> str:
        data, start = self.data, self.pos
        stop = start
        limit = min(self.end, start + 4096)
        while stop < limit and data[stop] != 10:
            stop += 1
        if stop >= limit:
            raise UnpicklingError(f"a name at byte {start} has no end: the file is damaged")
        self.pos = stop + 1
        return bytes(data[start:stop]).decode("utf-8")

    # -- the stack

    def pop(self):
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise UnpicklingError("the pickle takes more than it put: the file is damaged")
        return self.stack.pop()

    def pop_mark(self) -> list:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return [self._plain(item) for item in items]

    def pop_plain(self):
        return self._plain(self.pop())

    @staticmethod
    def _plain(item):
        """What an item means inside a container: globals become the value that stands for them."""
        if type(item) is Allowed:
            if item.value is None:
                raise UnpicklingError(f"GLOBAL {item.name} is used as a value, which plain data does not need: refused")
            return item.value
        return item

    # -- frames, marks, memo

    @_opcode(b"\x80")
    def proto(self):
        version = self.take(1)[0]
        if version > 5:
            raise UnpicklingError(f"pickle protocol {version} is not known")

    @_opcode(b"\x95")
    def frame(self):
        n = self.number("<Q", 8)
        if n > self.end - self.pos:
            raise UnpicklingError(f"a frame of {n} bytes goes beyond the end: the file is cut short")

    @_opcode(b"(")
    def mark(self):
        self.marks.append(len(self.stack))

    @_opcode(b"0")
    def pop_one(self):
        self.pop()

    @_opcode(b"1")
    def pop_to_mark(self):
        del self.stack[self.marks.pop() :]

    @_opcode(b"2")
    def dup(self):
        self.stack.append(self.stack[-1])

    @_opcode(b"q")
    def binput(self):
        self.memo[self.take(1)[0]] = self.stack[-1]

    @_opcode(b"r")
    def long_binput(self):
        self.memo[self.number("<I", 4)] = self.stack[-1]

    @_opcode(b"\x94")
    def memoize(self):
        self.memo[len(self.memo)] = self.stack[-1]

    @_opcode(b"h")
    def binget(self):
        self.stack.append(self.memo[self.take(1)[0]])

    @_opcode(b"j")
    def long_binget(self):
        self.stack.append(self.memo[self.number("<I", 4)])

    # -- scalars and strings

    @_opcode(b"N")
    def none(self):
        self.stack.append(None)

    @_opcode(b"\x88")
    def true(self):
        self.stack.append(True)

    @_opcode(b"\x89")
    def false(self):
        self.stack.append(False)

    @_opcode(b"J")
    def binint(self):
        self.stack.append(self.number("<i", 4))

    @_opcode(b"K")
    def binint1(self):
        self.stack.append(self.take(1)[0])

    @_opcode(b"M")
    def binint2(self):
        self.stack.append(self.number("<H", 2))

    @_opcode(b"\x8a")
    def long1(self):
        self.stack.append(int.from_bytes(self.take(self.take(1)[0]), "little", signed=True))

    @_opcode(b"\x8b")
    def long4(self):
        self.stack.append(int.from_bytes(self.take(self.number("<i", 4)), "little", signed=True))

    @_opcode(b"G")
    def binfloat(self):
        self.stack.append(self.number(">d", 8))

    @_opcode(b"X")
    def binunicode(self):
        self.stack.append(str(self.take(self.number("<I", 4)), "utf-8", "surrogatepass"))

    @_opcode(b"\x8c")
    def short_binunicode(self):
        self.stack.append(str(self.take(self.take(1)[0]), "utf-8", "surrogatepass"))

    @_opcode(b"\x8d")
    def binunicode8(self):
        self.stack.append(str(self.take(self.number("<Q", 8)), "utf-8", "surrogatepass"))

    def _old_string(self, raw):
        self.stack.append(bytes(raw) if self.encoding == "bytes" else str(raw, self.encoding))

    @_opcode(b"U")
    def short_binstring(self):
        self._old_string(self.take(self.take(1)[0]))

    @_opcode(b"T")
    def binstring(self):
        self._old_string(self.take(self.number("<i", 4)))

    @_opcode(b"C")
    def short_binbytes(self):
        self.stack.append(bytes(self.take(self.take(1)[0])))

    @_opcode(b"B")
    def binbytes(self):
        self.stack.append(bytes(self.take(self.number("<I", 4))))

    @_opcode(b"\x8e")
    def binbytes8(self):
        self.stack.append(bytes(self.take(self.number("<Q", 8))))

    @_opcode(b"\x96")
    def bytearray8(self):
        self.stack.append(bytearray(self.take(self.number("<Q", 8))))

    # -- containers

    @_opcode(b")")
    def empty_tuple(self):
        self.stack.append(())

    @_opcode(b"\x85")
    def tuple1(self):
        self.stack.append((self.pop_plain(),))

    @_opcode(b"\x86")
    def tuple2(self):
        b, a = self.pop_plain(), self.pop_plain()
        self.stack.append((a, b))

    @_opcode(b"\x87")
    def tuple3(self):
        c, b, a = self.pop_plain(), self.pop_plain(), self.pop_plain()
        self.stack.append((a, b, c))

    @_opcode(b"t")
    def tuple_(self):
        self.stack.append(tuple(self.pop_mark()))

    @_opcode(b"]")
    def empty_list(self):
        self.stack.append([])

    @_opcode(b"l")
    def list_(self):
        self.stack.append(self.pop_mark())

    def _target(self, kinds, what: str):
        target = self.stack[-1]
        if not isinstance(target, kinds):
            raise UnpicklingError(f"the pickle adds {what} to {type(target).__name__}: refused")
        return target

    @_opcode(b"a")
    def append(self):
        item = self.pop_plain()
        self._target(list, "items").append(item)

    @_opcode(b"e")
    def appends(self):
        items = self.pop_mark()
        self._target(list, "items").extend(items)

    @_opcode(b"}")
    def empty_dict(self):
        self.stack.append({})

    @_opcode(b"d")
    def dict_(self):
        items = self.pop_mark()
        self.stack.append(dict(zip(map(as_key, items[::2]), items[1::2], strict=True)))

    @_opcode(b"s")
    def setitem(self):
        value, key = self.pop_plain(), self.pop_plain()
        self._target(dict, "entries")[as_key(key)] = value

    @_opcode(b"u")
    def setitems(self):
        items = self.pop_mark()
        target = self._target(dict, "entries")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[as_key(key)] = value

    @_opcode(b"\x8f")
    def empty_set(self):
        self.stack.append(set())

    @_opcode(b"\x90")
    def additems(self):
        items = self.pop_mark()
        self._target(set, "items").update(map(as_key, items))

    @_opcode(b"\x91")
    def frozenset_(self):
        self.stack.append(frozenset(map(as_key, self.pop_mark())))

    # -- globals, and what may be done with them

    @_opcode(b"c")
    def global_(self):
        module, name = self.line(), self.line()
        self.stack.append(self.find(module, name))

    @_opcode(b"\x93")
    def stack_global(self):
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise UnpicklingError("a global whose name is no string: refused")
        self.stack.append(self.find(module, name))

    @_opcode(b"R")
    def reduce(self):
        args, func = self.pop(), self.pop()
        if type(func) is not Allowed or func.call is None:
            raise UnpicklingError(
                f"the pickle calls {func.name if type(func) is Allowed else type(func).__name__}: refused"
            )
        if type(args) is not tuple:
            raise UnpicklingError(f"the arguments of {func.name} are no tuple: the file is damaged")
        self.stack.append(func.call(*args))

    @_opcode(b"\x81")
    def newobj(self):
        args, cls = self.pop(), self.pop()
        if type(cls) is not Allowed or cls.new is None:
            raise UnpicklingError(
                f"the pickle makes an object of {cls.name if type(cls) is Allowed else type(cls).__name__}: refused"
            )
        if type(args) is not tuple:
            raise UnpicklingError(f"the arguments of {cls.name} are no tuple: the file is damaged")
        self.stack.append(cls.new(*args))

    @_opcode(b"b")
    def build(self):
        state = self.pop_plain()
        target = self.stack[-1]
        if type(target) is OrderedDict:  # a state_dict carries its _metadata as an attribute
            if type(state) is not dict or any(type(k) is not str or hasattr(OrderedDict, k) for k in state):
                raise UnpicklingError("the attributes of an OrderedDict are no dictionary of new names: refused")
            target.__dict__.update(state)
            return
        builder = self.builders.get(type(target))
        if builder is None:
            raise UnpicklingError(f"the pickle sets attributes of {type(target).__name__}: refused")
        builder(target, state)

    @_opcode(b"Q")
    def binpersid(self):
        pid = self.pop()
        if self.persistent_load is None:
            raise UnpicklingError("a persistent id where none is expected: refused")
        self.stack.append(self.persistent_load(pid))
