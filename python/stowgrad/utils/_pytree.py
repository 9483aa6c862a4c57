"""Trees of containers: taken apart into leaves and a spec, and put together again.

A container is of a registered type: tuples, named tuples, lists, dictionaries, ordered and default dictionaries,
deques, sizes, and what `register_pytree_node` or `register_dataclass` added. Everything else is a leaf, None too.
Subclasses of a registered type are leaves unless registered themselves (named tuples excepted). Invariant:
`tree_unflatten(*tree_flatten(x))` equals `x`, with every container of its own type and in its own order.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple

__all__ = [
    "LeafSpec",
    "TreeSpec",
    "is_namedtuple",
    "is_namedtuple_class",
    "is_namedtuple_instance",
    "is_structseq",
    "is_structseq_class",
    "keystr",
    "register_constant",
    "register_dataclass",
    "register_pytree_node",
    "tree_all",
    "tree_all_only",
    "tree_any",
    "tree_any_only",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_is_leaf",
    "tree_iter",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_",
    "tree_map_only",
    "tree_map_only_",
    "tree_map_with_path",
    "tree_structure",
    "tree_unflatten",
]


# ---- how each type comes apart ---------------------------------------------------------------------------------------


class NodeDef:
    """How containers of one type come apart, and together: `flatten(x) -> (children, context)`, `unflatten(children,
    context) -> x`.
    """

    __slots__ = ("flatten", "keys", "type", "unflatten")

    def __init__(self, cls, flatten, unflatten, keys) -> None:
        self.type = cls
        self.flatten = flatten
        self.unflatten = unflatten
        self.keys = keys


class _Key:
    """One step of a path."""

    __slots__ = ("value",)

    def __init__(self, value) -> None:
        self.value = value

    def __eq__(self, other) -> bool:
        return type(self) is type(other) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self), self.value))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class SequenceKey(_Key):
    """An index."""

    __slots__ = ()

    @property
    def idx(self) -> int:
        return self.value

    def __str__(self) -> str:
        return f"[{self.value!r}]"

    def get(self, container):
        """The child of `container` at this step."""
        return container[self.value]


class MappingKey(_Key):
    """A key of a dictionary."""

    __slots__ = ()

    @property
    def key(self):
        return self.value

    __str__ = SequenceKey.__str__
    get = SequenceKey.get


class GetAttrKey(_Key):
    """An attribute."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.value

    def __str__(self) -> str:
        return f".{self.value}"

    def get(self, container):
        """The child of `container` at this step."""
        return getattr(container, self.value)


def keystr(kp: tuple) -> str:
    """A path as text, such as `['a'][0].x`."""
    return "".join(str(key) for key in kp)


def _indices(x, n: int) -> list:
    return [SequenceKey(i) for i in range(n)]


def _sequence(cls):
    return NodeDef(cls, lambda x: (list(x), None), lambda children, _: cls(children), _indices)


def _restored_dict(children, keys):
    return dict(zip(keys, children, strict=True))


def _dict_keys(x, n: int) -> list:
    return [MappingKey(key) for key in x]


def _restored_default(children, context):
    factory, keys = context
    return defaultdict(factory, zip(keys, children, strict=True))


def _size(children, _):
    children = tuple(children)
    if all(type(n) is int for n in children):
        from stowgrad import _C

        return _C.Size(children)
    return children


_NAMED = NodeDef(
    namedtuple,
    lambda x: (list(x), type(x)),
    lambda children, cls: cls(*children),
    lambda x, n: [GetAttrKey(name) for name in x._fields],
)
_TUPLE = _sequence(tuple)
SUPPORTED_NODES: dict = {
    tuple: _TUPLE,
    list: _sequence(list),
    dict: NodeDef(dict, lambda x: (list(x.values()), list(x)), _restored_dict, _dict_keys),
    namedtuple: _NAMED,
    OrderedDict: NodeDef(
        OrderedDict,
        lambda x: (list(x.values()), list(x)),
        lambda children, keys: OrderedDict(zip(keys, children, strict=True)),
        _dict_keys,
    ),
    defaultdict: NodeDef(
        defaultdict, lambda x: (list(x.values()), [x.default_factory, list(x)]), _restored_default, _dict_keys
    ),
    deque: NodeDef(deque, lambda x: (list(x), x.maxlen), lambda children, maxlen: deque(children, maxlen), _indices),
}


def is_namedtuple_class(cls) -> bool:
    """Whether a class was made by `namedtuple` or `NamedTuple`, or derives from one."""
    fields = getattr(cls, "_fields", None)
    return (
        isinstance(cls, type)
        and issubclass(cls, tuple)
        and isinstance(fields, tuple)
        and all(type(f) is str for f in fields)
    )


def is_namedtuple_instance(obj) -> bool:
    """Whether an object is a named tuple."""
    return is_namedtuple_class(type(obj))


def is_namedtuple(obj) -> bool:
    """Whether an object or a class is a named tuple."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


def is_structseq_class(cls) -> bool:
    """Whether a class is one of the named results of operations, such as that of `max(x, 0)`."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields")


def is_structseq(obj) -> bool:
    """Whether an object or a class is a named result of an operation."""
    return is_structseq_class(obj if isinstance(obj, type) else type(obj))


def _definition(x):
    cls = type(x)
    found = SUPPORTED_NODES.get(cls)
    if found is None and isinstance(x, tuple):
        if is_namedtuple_class(cls):
            return _NAMED
        from stowgrad import _C

        if cls is _C.Size:
            found = SUPPORTED_NODES[cls] = NodeDef(cls, lambda s: (list(s), None), _size, _indices)
        elif is_structseq_class(cls):
            found = SUPPORTED_NODES[cls] = NodeDef(
                cls, lambda s: (list(s), None), lambda children, _: cls(tuple(children)), _indices
            )
    return found


def register_pytree_node(
    cls,
    flatten_fn,
    unflatten_fn,
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context=None,
    from_dumpable_context=None,
    flatten_with_keys_fn=None,
) -> None:
    """Makes a class a container: `flatten_fn(x) -> (children, context)`, `unflatten_fn(children, context) -> x`.

    ValueError if the class is one already. `flatten_with_keys_fn(x) -> ([(key, child)], context)` names the children
    in paths.
    """
    if cls in SUPPORTED_NODES or is_namedtuple_class(cls):
        raise ValueError(f"{cls} is already registered as pytree node.")

    def keys(x, n):
        if flatten_with_keys_fn is None:
            return _indices(x, n)
        return [key for key, _ in flatten_with_keys_fn(x)[0]]

    SUPPORTED_NODES[cls] = NodeDef(cls, lambda x: (lambda c, k: (list(c), k))(*flatten_fn(x)), unflatten_fn, keys)


_register_pytree_node = register_pytree_node


def register_dataclass(
    cls,
    *,
    field_names: list | None = None,
    drop_field_names: list | None = None,
    serialized_type_name: str | None = None,
) -> None:
    """Makes a dataclass a container of its fields (those that `__init__` takes, or `field_names`).

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: int
    ...     y: int
    >>> register_dataclass(Point)
    >>> tree_map(lambda v: v * 2, Point(1, 2))
    Point(x=2, y=4)
    """
    from dataclasses import fields, is_dataclass

    if field_names is None:
        if not is_dataclass(cls):
            raise ValueError(f"register_dataclass: {cls} is no dataclass, and field_names is not given")
        field_names = [f.name for f in fields(cls) if f.init]
    names = [n for n in field_names if n not in (drop_field_names or ())]
    register_pytree_node(
        cls,
        lambda x: ([getattr(x, name) for name in names], names),
        lambda children, context: cls(**dict(zip(context, children, strict=True))),
        flatten_with_keys_fn=lambda x: ([(GetAttrKey(name), getattr(x, name)) for name in names], names),
    )


class _Constant:
    __slots__ = ("value",)

    def __init__(self, value) -> None:
        self.value = value

    def __eq__(self, other) -> bool:
        return type(other) is _Constant and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def register_constant(cls) -> None:
    """Makes objects of a class part of the spec: containers without children. They must compare and hash by value."""
    if cls.__eq__ is object.__eq__ or cls.__hash__ is None or cls.__hash__ is object.__hash__:
        raise TypeError(
            f"register_constant: {cls.__name__} must define __eq__ and __hash__, by which specs are compared"
        )
    register_pytree_node(cls, lambda x: ([], _Constant(x)), lambda children, context: context.value)


# ---- specs -----------------------------------------------------------------------------------------------------------


class TreeSpec:
    """The shape of a tree without its leaves; compares and hashes by value."""

    __slots__ = ("_children", "context", "num_children", "num_leaves", "num_nodes", "type")

    def __init__(self, type, context, children_specs) -> None:
        self.type = type
        self.context = context
        self._children = list(children_specs)
        self.num_children = len(self._children)
        if type is None:
            self.num_leaves = self.num_nodes = 1
        else:
            self.num_leaves = sum(child.num_leaves for child in self._children)
            self.num_nodes = 1 + sum(child.num_nodes for child in self._children)

    def is_leaf(self) -> bool:
        """Whether the tree is one leaf."""
        return self.type is None

    def children(self) -> list:
        """The specs of the children."""
        return list(self._children)

    @property
    def children_specs(self) -> list:
        return list(self._children)

    def child(self, index: int):
        """The spec of one child."""
        return self._children[index]

    def unflatten(self, leaves):
        """The tree of this shape with these leaves. ValueError if there are too few or too many."""
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(
                f"treespec.unflatten(leaves): `leaves` has length {len(leaves)} but the spec refers to a pytree that "
                "holds "
                f"{self.num_leaves} items ({self})"
            )
        return self._build(iter(leaves))

    def _build(self, leaves):
        if self.type is None:
            return next(leaves)
        children = [child._build(leaves) for child in self._children]
        return SUPPORTED_NODES[self.type].unflatten(children, self.context)

    def flatten_up_to(self, tree) -> list:
        """The subtrees of `tree` that stand where this spec has leaves. ValueError where the containers differ."""
        out: list = []
        self._descend(tree, out)
        return out

    def _descend(self, tree, out: list) -> None:
        if self.type is None:
            out.append(tree)
            return
        definition = _definition(tree)
        if definition is None or (
            definition.type is not self.type and not (_is_mapping(definition.type) and _is_mapping(self.type))
        ):
            raise ValueError(f"Node type mismatch; expected {self.type!r}, but got {type(tree)!r}.")
        children, context = definition.flatten(tree)
        if len(children) != self.num_children:
            raise ValueError(f"Node arity mismatch; expected {self.num_children}, but got {len(children)}.")
        if _is_mapping(self.type):
            keys = self.context[1] if self.type is defaultdict else self.context
            missing, extra = [k for k in keys if k not in tree], [k for k in tree if k not in keys]
            if missing or extra:
                raise ValueError(f"Node keys mismatch; missing key(s): {missing}; extra key(s): {extra}.")
            children = [tree[key] for key in keys]
        elif definition is not _TUPLE and self.type is not deque and context != self.context:
            raise ValueError(
                f"Node context mismatch for {self.type!r}; expected {self.context!r}, but got {context!r}."
            )
        for spec, child in zip(self._children, children, strict=True):
            spec._descend(child, out)

    def __eq__(self, other) -> bool:
        if not isinstance(other, TreeSpec):
            return NotImplemented
        return self.type is other.type and self.context == other.context and self._children == other._children

    def __hash__(self) -> int:
        context = self.context
        if isinstance(context, list):
            context = tuple(map(str, context))
        return hash(
            (
                self.type,
                context if getattr(context, "__hash__", None) else str(context),
                tuple(map(hash, self._children)),
            )
        )

    def __repr__(self) -> str:
        return self._text(0)

    def _text(self, indent: int) -> str:
        if self.type is None:
            return "*"
        text = f"TreeSpec({self.type.__name__}, {self.context}, ["
        inner = indent + 2
        for i, child in enumerate(self._children):
            text += ("," if i else "") + ("\n" + " " * inner if i else "") + child._text(inner)
        return text + "])"


PyTreeSpec = TreeSpec


class LeafSpec(TreeSpec):
    """The spec of one leaf."""

    __slots__ = ()

    def __init__(self) -> None:
        TreeSpec.__init__(self, None, None, ())


_LEAF = LeafSpec()


def _is_mapping(cls) -> bool:
    return cls in (dict, OrderedDict, defaultdict)


# ---- the walks -------------------------------------------------------------------------------------------------------


def tree_is_leaf(tree, is_leaf=None) -> bool:
    """Whether `tree` is a leaf: no container, or one for which `is_leaf` says so."""
    return (is_leaf is not None and is_leaf(tree)) or _definition(tree) is None


def _take_apart(tree, leaves: list, is_leaf) -> TreeSpec:
    if is_leaf is not None and is_leaf(tree):
        leaves.append(tree)
        return _LEAF
    definition = _definition(tree)
    if definition is None:
        leaves.append(tree)
        return _LEAF
    children, context = definition.flatten(tree)
    return TreeSpec(definition.type, context, [_take_apart(child, leaves, is_leaf) for child in children])


def tree_flatten(tree, is_leaf=None) -> tuple:
    """`(leaves, spec)` of a tree.

    >>> leaves, spec = tree_flatten({"a": [1, 2], "b": (3,)})
    >>> leaves
    [1, 2, 3]
    >>> tree_unflatten([10, 20, 30], spec)
    {'a': [10, 20], 'b': (30,)}
    """
    leaves: list = []
    return leaves, _take_apart(tree, leaves, is_leaf)


def tree_unflatten(leaves, treespec: TreeSpec):
    """The tree with the shape of `treespec` and these leaves."""
    if not isinstance(treespec, TreeSpec):
        raise TypeError(f"tree_unflatten(leaves, treespec): treespec must be a TreeSpec, not {type(treespec).__name__}")
    return treespec.unflatten(leaves)


def tree_iter(tree, is_leaf=None):
    """The leaves, one after the other."""
    if tree_is_leaf(tree, is_leaf):
        yield tree
    else:
        for child in _definition(tree).flatten(tree)[0]:
            yield from tree_iter(child, is_leaf)


def tree_leaves(tree, is_leaf=None) -> list:
    """The leaves as a list."""
    return list(tree_iter(tree, is_leaf))


def tree_structure(tree, is_leaf=None) -> TreeSpec:
    """The spec of a tree."""
    return _take_apart(tree, [], is_leaf)


def tree_map(func, tree, *rests, is_leaf=None):
    """A tree of the same shape with `func(leaf, ...)` for each leaf; `rests` are trees that have at least that shape.

    >>> tree_map(lambda x, y: x + y, [1, {"a": 2}], [10, {"a": 20}])
    [11, {'a': 22}]
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return spec.unflatten(map(func, leaves, *others))


def tree_map_(func, tree, *rests, is_leaf=None):
    """Calls `func` on each leaf for its effect, and returns the tree itself."""
    leaves, spec = tree_flatten(tree, is_leaf)
    for args in zip(leaves, *[spec.flatten_up_to(rest) for rest in rests], strict=True):
        func(*args)
    return tree


def _only(types, func, otherwise):
    if isinstance(types, (type, tuple)) or not callable(types):

        def chosen(x) -> bool:
            return isinstance(x, types)

    else:
        chosen = types
    return lambda x: func(x) if chosen(x) else otherwise(x)


def map_only(type_or_types_or_pred):
    """A decorator: the function is applied to what is of these types (or for which the predicate holds); the rest
    passes through.
    """
    return lambda func: _only(type_or_types_or_pred, func, lambda x: x)


def tree_map_only(type_or_types_or_pred, /, func, tree, is_leaf=None):
    """`tree_map` over the leaves of these types (or for which the predicate holds); the others stay as they are."""
    return tree_map(_only(type_or_types_or_pred, func, lambda x: x), tree, is_leaf=is_leaf)


def tree_map_only_(type_or_types_or_pred, /, func, tree, is_leaf=None):
    """`tree_map_` over the leaves of these types (or for which the predicate holds)."""
    return tree_map_(_only(type_or_types_or_pred, func, lambda x: x), tree, is_leaf=is_leaf)


def tree_all(pred, tree, is_leaf=None) -> bool:
    """Whether `pred` holds for every leaf."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred, tree, is_leaf=None) -> bool:
    """Whether `pred` holds for some leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))


def tree_all_only(type_or_types, /, pred, tree, is_leaf=None) -> bool:
    """Whether `pred` holds for every leaf of these types."""
    return all(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, type_or_types))


def tree_any_only(type_or_types, /, pred, tree, is_leaf=None) -> bool:
    """Whether `pred` holds for some leaf of these types."""
    return any(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, type_or_types))


def _paths(path: tuple, tree, is_leaf):
    if tree_is_leaf(tree, is_leaf):
        yield path, tree
        return
    definition = _definition(tree)
    children = definition.flatten(tree)[0]
    for key, child in zip(definition.keys(tree, len(children)), children, strict=True):
        yield from _paths((*path, key), child, is_leaf)


def tree_leaves_with_path(tree, is_leaf=None) -> list:
    """`(path, leaf)` for each leaf; `keystr` prints a path."""
    return list(_paths((), tree, is_leaf))


def tree_flatten_with_path(tree, is_leaf=None) -> tuple:
    """`([(path, leaf), ...], spec)` of a tree."""
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(func, tree, *rests, is_leaf=None):
    """`tree_map` with `func(path, leaf, ...)`."""
    found, spec = tree_flatten_with_path(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return spec.unflatten(func(path, leaf, *args) for (path, leaf), *args in zip(found, *others, strict=True))


def _broadcast_to_and_flatten(tree, treespec: TreeSpec, is_leaf=None) -> list | None:
    """The leaves of `tree` for each leaf of `treespec`, one repeated where `tree` has a leaf for a container; None if
    it cannot be.
    """
    if tree_is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    definition = _definition(tree)
    if treespec.is_leaf() or definition.type is not treespec.type:
        return None
    children, context = definition.flatten(tree)
    if len(children) != treespec.num_children or context != treespec.context:
        return None
    out: list = []
    for child, spec in zip(children, treespec.children(), strict=True):
        part = _broadcast_to_and_flatten(child, spec, is_leaf)
        if part is None:
            return None
        out += part
    return out
