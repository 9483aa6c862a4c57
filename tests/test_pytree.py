"""Trees come apart and together: every container of its own type and order, everything else a leaf."""

from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass

import pytest
import stowgrad as torch
from stowgrad.utils import _pytree as pytree

Point = namedtuple("Point", "x y")

TREES = [
    1,
    None,
    "text",
    [],
    {},
    (1, [2, {"a": 3, "b": (4,)}]),
    Point(1, [2]),
    OrderedDict(b=[1], a=2),
    defaultdict(list, {1: [2]}),
    deque([1, 2], 3),
    torch.Size([1, 2]),
    {"x": Point({"q": 1}, 2)},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_apart_and_together_is_the_same(tree):
    leaves, spec = pytree.tree_flatten(tree)
    again = pytree.tree_unflatten(leaves, spec)
    assert again == tree and type(again) is type(tree)
    assert spec.num_leaves == len(leaves) == len(pytree.tree_leaves(tree))
    assert spec == pytree.tree_structure(tree) and hash(spec) == hash(pytree.tree_structure(tree))


def test_specs_print_as_torch_prints_them():
    assert (
        str(pytree.tree_structure({"b": 1, "a": [2]}))
        == "TreeSpec(dict, ['b', 'a'], [*,\n  TreeSpec(list, None, [*])])"
    )


def test_dictionaries_keep_their_order_and_match_by_key():
    leaves, _ = pytree.tree_flatten({"b": 1, "a": 2})
    assert leaves == [1, 2]
    assert pytree.tree_map(lambda x, y: (x, y), {"a": 1, "b": 2}, {"b": 3, "a": 4}) == {"a": (1, 4), "b": (2, 3)}


def test_maps_go_over_leaves_of_a_type_or_by_a_predicate():
    tree = [1, "a", {"b": 2.0}]
    assert pytree.tree_map_only(int, lambda x: x + 1, tree) == [2, "a", {"b": 2.0}]
    assert pytree.tree_map_only((int, float), lambda x: x + 1, tree) == [2, "a", {"b": 3.0}]
    assert pytree.tree_map_only(lambda x: x == "a", str.upper, tree) == [1, "A", {"b": 2.0}]
    assert pytree.tree_any(lambda x: x == "a", tree) and not pytree.tree_all(lambda x: x == "a", tree)
    assert pytree.tree_map(
        len, [[1, 2], [3]], is_leaf=lambda x: isinstance(x, list) and x and isinstance(x[0], int)
    ) == [2, 1]


def test_paths_can_be_printed():
    paths = [pytree.keystr(p) for p, _ in pytree.tree_leaves_with_path({"a": [1, Point(2, 3)]})]
    assert paths == ["['a'][0]", "['a'][1].x", "['a'][1].y"]


def test_what_does_not_match_is_an_error():
    spec = pytree.tree_structure([1, 2])
    with pytest.raises(ValueError, match="length 1"):
        pytree.tree_unflatten([1], spec)
    for other, words in (([1], "arity"), ((1, 2), "type"), (5, "type")):
        with pytest.raises(ValueError, match=words):
            pytree.tree_map(lambda x, y: 0, [1, 2], other)
    with pytest.raises(ValueError, match="keys"):
        pytree.tree_map(lambda x, y: 0, {"a": 1}, {"b": 1})


def test_classes_can_be_registered_once():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    assert pytree.tree_leaves([Pair(1, 2)])[0].a == 1
    pytree.register_pytree_node(Pair, lambda p: ([p.a, p.b], None), lambda children, _: Pair(*children))
    assert pytree.tree_leaves([Pair(1, 2)]) == [1, 2]
    assert pytree.tree_map(lambda v: v * 10, Pair(1, 2)).b == 20
    with pytest.raises(ValueError, match="already registered"):
        pytree.register_pytree_node(Pair, None, None)


def test_dataclasses_are_containers_when_registered():
    @dataclass
    class Batch:
        x: object
        y: object

    assert pytree.tree_leaves(Batch(1, 2)) == [Batch(1, 2)]
    pytree.register_dataclass(Batch)
    assert pytree.tree_map(lambda v: v + 1, Batch(1, [2])) == Batch(2, [3])
