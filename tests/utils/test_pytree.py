"""utils._pytree: containers taken apart and put together. Facts are those of PyTorch 2.13."""

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest

import resilin as torch
from resilin.utils import _pytree as pytree

Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("tree", "leaves"),
    [
        ({"b": 1, "a": [2, (3,)]}, [1, 2, 3]),
        (Point(1, [2]), [1, 2]),
        (None, [None]),
        ([], []),
        (OrderedDict(a=1, b=2), [1, 2]),
        (defaultdict(list, a=1), [1]),
        (deque([1, 2], maxlen=3), [1, 2]),
        (torch.Size([1, 2]), [1, 2]),
        ("text", ["text"]),
    ],
)
def test_containers_come_back_as_they_were(tree, leaves):
    found, spec = pytree.tree_flatten(tree)
    assert found == leaves == pytree.tree_leaves(tree)
    back = pytree.tree_unflatten(found, spec)
    assert back == tree
    assert type(back) is type(tree)
    assert spec == pytree.tree_structure(tree)
    assert spec.num_leaves == len(leaves)
    if isinstance(tree, deque):
        assert back.maxlen == 3


def test_maps_take_other_trees_beside():
    add = lambda a, b: a + b  # noqa: E731
    assert pytree.tree_map(add, {"a": 1, "b": 2}, {"b": 10, "a": 20}) == {"a": 21, "b": 12}
    assert pytree.tree_map(lambda a, b: (a, b), [1, 2], [[1, 5], 2]) == [(1, [1, 5]), (2, 2)]
    assert pytree.tree_structure(OrderedDict(a=1)).flatten_up_to({"a": 1}) == [1]
    for one, other in (([1, 2], (1, 2)), ([1, 2], [1]), ({"a": 1}, {"b": 1}), ([1], 1)):
        with pytest.raises(ValueError, match="mismatch"):
            pytree.tree_map(add, one, other)


def test_shapes_are_compared_with_the_order_of_keys():
    structure = pytree.tree_structure
    assert structure([1, 2]) == structure([3, 4]) != structure((3, 4))
    assert structure({"a": 1, "b": 2}) != structure({"b": 1, "a": 2})
    assert structure([1, (2,)]).num_nodes == 4
    assert structure(3) == pytree.LeafSpec()
    with pytest.raises(ValueError, match="length 1 but the spec refers to a pytree that holds 2"):
        pytree.tree_unflatten([1], structure([1, 2]))


def test_maps_over_some_leaves_alone():
    assert pytree.tree_map_only(int, lambda x: x + 1, [1, "a", 2.0]) == [2, "a", 2.0]
    assert pytree.tree_map_only((int, str), lambda x: x * 2, [1, "a", 2.0]) == [2, "aa", 2.0]
    assert pytree.tree_map_only(lambda x: x == 1, lambda x: x * 2, [1, "a"]) == [2, "a"]
    assert pytree.tree_map(len, [[1], [2, 3]], is_leaf=lambda x: isinstance(x, list) and isinstance(x[0], int)) == [
        1,
        2,
    ]
    assert pytree.tree_all_only(int, lambda x: x > 0, [1, "a"])
    assert pytree.tree_any(lambda x: x == 2, {"a": [2]})
    assert not pytree.tree_all(bool, [0, 1])
    seen = []
    tree = {"a": [1, 2]}
    assert pytree.tree_map_(seen.append, tree) is tree
    assert seen == [1, 2]
    moved = pytree.tree_map_only(torch.Tensor, lambda t: t.double(), {"x": torch.ones(1), "n": 3})
    assert (moved["x"].dtype, moved["n"]) == (torch.float64, 3)


def test_paths_lead_to_leaves():
    tree = {"a": [1, Point(2, 3)]}
    found, _ = pytree.tree_flatten_with_path(tree)
    assert [(pytree.keystr(path), leaf) for path, leaf in found] == [
        ("['a'][0]", 1),
        ("['a'][1].x", 2),
        ("['a'][1].y", 3),
    ]
    assert all(pytree.key_get(tree, path) == leaf for path, leaf in found)
    named = pytree.tree_map_with_path(lambda path, leaf: f"{pytree.keystr(path)}={leaf}", [1, {"k": 2}])
    assert named == ["[0]=1", {"k": "[1]['k']=2"}]


def test_a_shape_that_ends_earlier_is_spread():
    spread = pytree._broadcast_to_and_flatten
    structure = pytree.tree_structure([[1, 2], 3])
    assert spread([1, 2], structure) == [1, 1, 2]
    assert spread(0, structure) == [0, 0, 0]
    assert spread([1], structure) is None
    assert spread((1, 2), structure) is None


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


@pytest.fixture
def _pairs():
    pytree.register_pytree_node(Pair, lambda p: ((p.a, p.b), "of two"), lambda children, context: Pair(*children))
    yield
    pytree._deregister_pytree_node(Pair)


@pytest.mark.usefixtures("_pairs")
def test_classes_are_registered_once():
    leaves, spec = pytree.tree_flatten([Pair(1, [2]), 3])
    assert leaves == [1, 2, 3]
    assert spec.child(0).context == "of two"
    assert pytree.tree_map(lambda x: x * 2, Pair(1, 2)).b == 4
    with pytest.raises(ValueError, match="already registered"):
        pytree.register_pytree_node(Pair, None, None)
    with pytest.raises(ValueError, match="flatten_with_keys_fn"):
        pytree.tree_flatten_with_path(Pair(1, 2))


def test_dataclasses_are_registered_by_their_fields():
    @dataclasses.dataclass
    class State:
        x: int
        y: int
        note: str = "n"

    pytree.register_dataclass(State, drop_field_names=["note"])
    try:
        made = pytree.tree_map(lambda v: v + 1, State(1, 2, "gone"))
        assert made == State(2, 3, "n")
        assert pytree.keystr(pytree.tree_leaves_with_path([State(1, 2)])[1][0]) == "[0].y"
    finally:
        pytree._deregister_pytree_node(State)
