"""Nested structures: taken apart and put together."""

from __future__ import annotations

import io
from collections import OrderedDict, namedtuple

import pytest

import resilin as rs
from resilin.core import trees
from resilin.errors import UsageError

Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "value",
    [
        3,
        None,
        (),
        [1, (2, 3), {"x": 4, "b": [5]}],
        OrderedDict(z=1, a=2),
        Pair(1, (2, Pair(3, 4))),
        {1: "one", "1": "two"},
    ],
)
def test_a_structure_is_built_again_as_it_was(value):
    leaves, tree = trees.flatten(value)
    again = trees.unflatten(leaves, tree)
    assert again == value
    assert type(again) is type(value)
    if isinstance(value, dict):
        assert list(again) == list(value)


def test_dicts_that_differ_in_order_are_alike_and_give_their_leaves_alike():
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert trees.flatten(one) == trees.flatten(other)
    assert trees.flatten(one)[1] != trees.flatten({"a": 1})[1]
    assert trees.flatten([1])[1] != trees.flatten((1,))[1]


def test_a_prefix_is_spread_over_the_leaves():
    value = {"b": [1, 2], "a": (3,)}
    assert trees.spread(0, value, "here") == [0, 0, 0]
    assert trees.spread({"a": 5, "b": [6, None]}, value, "here") == [5, 6, None]
    for wrong in ({"a": 1}, [0, 0], {"a": 0, "b": (1, 2)}, {"a": 0, "b": [1]}):
        with pytest.raises(ValueError, match=r"here .* structure"):
            trees.spread(wrong, value, "here")


def test_every_leaf_is_transformed():
    assert trees.transform(lambda leaf: leaf * 2, {"a": [1, (2,)], "b": 3}) == {"a": [2, (4,)], "b": 6}


def test_containers_that_hold_one_another_again_and_again_are_counted_and_refused():
    value: object = []
    for _ in range(39):
        value = [value, value]
    for call in (lambda: trees.check_shared(value, "it"), lambda: rs.save({"a": value}, io.BytesIO())):
        with pytest.raises(UsageError, match=r"4[01] lists, tuples and dicts that hold one another"):
            call()
    shared = [1.0] * 100
    trees.check_shared({"a": [shared] * 50, "b": {"c": shared}}, "it")
    looped: list[object] = [1]
    looped.append(looped)
    trees.check_shared(looped, "it")
    trees.check_shared([1] * 3_000_000, "it")
