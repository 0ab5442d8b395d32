"""What is gathered together, and in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharded_nets import Block, Language

import resilin
from resilin import nn
from resilin.errors import UsageError, UsageTypeError
from resilin.zero import partition
from resilin.zero.sharded.buffer_pool import BufferPool
from resilin.zero.sharded.unit import Unit, shares
from resilin.zero.sharded.unshard import Order
from resilin.zero.sharded.wrap_policy import Members, buckets, choose


def names(members: list[Members]) -> dict[str, list[str]]:
    return {each.name or "(root)": [name for name, _ in each.named] for each in members}


def test_children_and_elements_of_lists_are_units_and_shared_parameters_are_their_own() -> None:
    net = Language(2)
    found = choose(net, None)
    assert list(names(found)) == ["(root)", "embed", "blocks.0", "blocks.1", "norm"]
    assert names(found)["(root)"] == ["place"]
    assert names(found)["embed"] == ["embed.weight"]
    shared = next(each for each in found if each.name == "embed")
    assert shared.modules == [net.embed, net.head]
    assert names(found)["blocks.0"] == [name for name, _ in net.named_parameters() if name.startswith("blocks.0.")]


def test_containers_are_opened_also_inside_of_units() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(2, 2)
            self.layers = nn.ModuleDict({"a": nn.ModuleList([Block()]), "b": nn.Linear(2, 2)})

    net = nn.Sequential(Encoder(), nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    assert list(names(choose(net, None))) == ["0", "0.layers.a.0", "0.layers.b", "2.0", "2.1"]


def test_units_are_chosen_by_a_function_by_classes_and_by_modules() -> None:
    net = Language(2)
    only = ["(root)", "blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"]
    assert sorted(
        names(choose(net, lambda module: isinstance(module, nn.Linear) and module is not net.head))
    ) == sorted(only)
    assert list(names(choose(net, {Block}))) == ["(root)", "blocks.0", "blocks.1"]
    assert list(names(choose(net, [net.blocks[1]]))) == ["(root)", "blocks.1"]
    assert list(names(choose(net, ()))) == ["(root)"]
    assert sum(len(each.named) for each in choose(net, {Block})) == len(list(net.parameters()))


@pytest.mark.parametrize("units", [3, "Block", [3]])
def test_units_of_another_kind_are_refused(units: Any) -> None:
    with pytest.raises(UsageTypeError):
        choose(Language(1), units)


def test_a_unit_of_another_module_is_refused() -> None:
    with pytest.raises(UsageError, match="no part of the module"):
        choose(Language(1), [nn.Linear(2, 2)])


def test_a_unit_holds_one_dtype_and_one_kind_of_training() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.inner.extra = nn.Parameter(resilin.zeros(2, dtype=resilin.float64))
            self.inner.bias.requires_grad_(False)

    assert [[name for name, _ in each.named] for each in choose(Mixed(), None)] == [
        ["inner.weight"],
        ["inner.bias"],
        ["inner.extra"],
    ]


def test_buckets_hold_parameters_in_order_up_to_their_size() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    assert [[name for name, _ in each.named] for each in buckets(net, 100)] == [
        ["0.weight", "0.bias", "1.weight"],
        ["1.bias", "2.weight", "2.bias"],
    ]
    assert len(buckets(net, 1)) == 6


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=20), st.integers(1, 9))
def test_no_two_units_have_ranges_of_one_length_and_each_holds_its_row(sizes: list[int], world: int) -> None:
    units = [
        Unit(Members("", [("p", nn.Parameter(resilin.zeros(size)))]), n, None, None) for n, size in enumerate(sizes)
    ]
    found = shares(units, world)
    assert len(set(found)) == len(found)
    for unit, share in zip(units, found, strict=True):
        assert share * world >= unit.total
        assert share - partition.share(unit.total, world) <= partition.BLOCK * len(units)


def test_the_order_is_learned_and_learned_anew_where_it_changes() -> None:
    order = Order()
    order.begin([2, 1, 0])
    assert [order.next(unit) for unit in (2, 1, 0)] == [1, 0, None]
    order.begin()
    assert [order.next(unit) for unit in (2, 0, 1, 0)] == [1, None, None, None]
    order.begin()
    assert [order.next(unit) for unit in (2, 0, 1, 0)] == [0, 1, 0, None]


def test_a_slab_is_lent_again_unless_somebody_looks_into_it() -> None:
    slabs = BufferPool(resilin.zeros(1).device)
    first = slabs.take(64, queued=False)
    address = first.memory.ctypes.data
    slabs.give(first)
    del first
    again = slabs.take(32, queued=False)
    assert again.memory.ctypes.data == address
    look = again.array(np.dtype(np.float32), 4)
    assert again.held()
    assert not again.held(1)
    slabs.give(again)
    del again
    other = slabs.take(32, queued=False)
    assert other.memory.ctypes.data != address
    look[:] = 1.0
