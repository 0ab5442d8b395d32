"""treespec_dumps and treespec_loads: shapes as PyTorch's JSON. The texts are those of PyTorch 2.13."""

import enum
import json
from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest

import resilin as torch
from resilin.utils import _pytree as pytree

LEAF = '{"type": null, "context": null, "children_spec": []}'
Named = namedtuple("Named", "x y")


class Colour(enum.Enum):
    """A key of a dict."""

    RED = 1


class Box:
    """A container of a program's own."""

    def __init__(self, inner):
        self.inner = inner


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (1, LEAF),
        ([1], f'{{"type": "builtins.list", "context": "null", "children_spec": [{LEAF}]}}'),
        ((1,), f'{{"type": "builtins.tuple", "context": "null", "children_spec": [{LEAF}]}}'),
        ({"b": 1}, f'{{"type": "builtins.dict", "context": "[\\"b\\"]", "children_spec": [{LEAF}]}}'),
        (OrderedDict(x=1), f'{{"type": "collections.OrderedDict", "context": "[\\"x\\"]", "children_spec": [{LEAF}]}}'),
        (deque([1], maxlen=3), f'{{"type": "collections.deque", "context": "3", "children_spec": [{LEAF}]}}'),
        (torch.Size([1]), f'{{"type": "torch.Size", "context": "null", "children_spec": [{LEAF}]}}'),
        (
            defaultdict(list, a=1),
            '{"type": "collections.defaultdict", "context": {"default_factory_module": "builtins", '
            f'"default_factory_name": "list", "dict_context": ["a"]}}, "children_spec": [{LEAF}]}}',
        ),
    ],
)
def test_texts_are_pytorchs_and_are_read_again(tree, text):
    spec = pytree.tree_structure(tree)
    assert pytree.treespec_dumps(spec) == f"[1, {text}]"
    assert pytree.treespec_loads(f"[1, {text}]") == spec


def test_registered_containers_and_named_tuples_are_named_in_texts():
    with pytest.raises(NotImplementedError, match="_register_namedtuple"):
        pytree.treespec_dumps(pytree.tree_structure(Named(1, 2)))
    pytree._register_namedtuple(Named, serialized_type_name="tests.Named")
    spec = pytree.tree_structure({Colour.RED: Named(1, [2])})
    assert '"type": "collections.namedtuple", "context": "tests.Named"' in pytree.treespec_dumps(spec)
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec

    flatten, unflatten = (lambda box: ([box.inner], None)), (lambda values, context: Box(*values))
    pytree.register_pytree_node(Box, flatten, unflatten, serialized_type_name="tests.Box")
    try:
        spec = pytree.tree_structure(Box([1]))
        assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    finally:
        pytree._deregister_pytree_node(Box)


def test_what_has_no_text_is_refused():
    with pytest.raises(NotImplementedError, match="serialized_type_name"):
        pytree.treespec_dumps(pytree.tree_structure(torch.ones(2).max(0)))
    with pytest.raises(TypeError, match="Unable to serialize context"):
        pytree.treespec_dumps(pytree.tree_structure({torch.float32: 1}))
    with pytest.raises(NotImplementedError, match="not registered"):
        pytree.treespec_loads('[1, {"type": "tests.Unknown", "context": "null", "children_spec": []}]')
    with pytest.raises(ValueError, match="Unknown protocol 2"):
        pytree.treespec_loads("[2, null]")
    with pytest.raises(ValueError, match="Both to_dumpable_context"):
        pytree.register_pytree_node(
            Colour, list, list, serialized_type_name="tests.Colour", to_dumpable_context=lambda context: context
        )


def test_a_text_imports_nothing():
    context = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": []}
    text = json.dumps([1, {"type": "collections.defaultdict", "context": context, "children_spec": []}])
    with pytest.raises(ImportError, match="import antigravity first"):
        pytree.treespec_loads(text)


def test_a_shape_is_shown_as_its_containers_are():
    assert pytree.treespec_pprint(pytree.tree_structure({"a": [1, (2,)]})) == "{'a': [*, (*,)]}"
