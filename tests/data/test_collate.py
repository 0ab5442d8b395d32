"""default_collate, default_convert and their table of functions, with PyTorch's results for every kind of container."""

import types
from collections import OrderedDict, UserList, defaultdict, deque, namedtuple

import numpy as np
import pytest

import resilin
from resilin.data import DataLoader, default_collate, default_convert
from resilin.data.collate import collate, default_collate_fn_map
from resilin.errors import UsageError

Point = namedtuple("Point", "x y")


def values(data):
    """`data` with its tensors as lists."""
    if isinstance(data, resilin.Tensor):
        return data.tolist()
    if isinstance(data, dict):
        return {key: values(value) for key, value in data.items()}
    return [values(value) for value in data] if isinstance(data, list | tuple | UserList | deque) else data


@pytest.mark.parametrize(
    ("sample", "kind", "expected"),
    [
        ({"a": 1}, dict, {"a": [1, 1]}),
        (OrderedDict(a=1), OrderedDict, {"a": [1, 1]}),
        (defaultdict(int, a=1), defaultdict, {"a": [1, 1]}),
        (types.MappingProxyType({"a": 1}), types.MappingProxyType, None),
        (Point(1, "b"), Point, [[1, 1], ["b", "b"]]),
        ((1, 2), list, [[1, 1], [2, 2]]),
        ([1, 2], list, [[1, 1], [2, 2]]),
        (UserList([1, 2]), UserList, [[1, 1], [2, 2]]),
        (deque([1, 2]), deque, [[1, 1], [2, 2]]),
        (range(2), list, [[0, 0], [1, 1]]),
        ([], list, []),
        ({}, dict, {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_keep_their_type_where_it_allows_that(sample, kind, expected):
    batch = default_collate([sample, sample])
    assert type(batch) is kind
    if expected is not None:
        assert values(list(batch) if isinstance(batch, tuple) else batch) == expected


def test_the_default_of_a_defaultdict_is_kept():
    assert default_collate([defaultdict(int, a=1)] * 2)["other"] == 0


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([resilin.ones(1), resilin.ones(1, dtype=resilin.int64)], resilin.float32),
        ([np.ones(1, np.int64), np.ones(1, np.float32)], resilin.float32),
        ([np.ones(1, ">f4"), np.ones(1, ">f4")], resilin.float32),
        ([np.int32(1), np.int32(2)], resilin.int32),
        ([np.bool_(1), np.bool_(0)], resilin.bool),
    ],
    ids=["tensors", "arrays", "byte order", "scalars", "flags"],
)
def test_dtypes_of_a_batch_are_pytorchs(samples, dtype):
    assert default_collate(samples).dtype is dtype


def test_gradients_flow_through_a_batch_made_in_process():
    leaf = resilin.ones(2, requires_grad=True)
    default_collate([leaf * 2, leaf * 3]).sum().backward()
    assert leaf.grad.tolist() == [5, 5]


def test_a_registered_function_joins_samples_of_its_type(monkeypatch):
    class Span:
        def __init__(self, start, end):
            self.start, self.end = start, end

    class Named(Span):
        pass

    monkeypatch.setitem(
        default_collate_fn_map,
        Span,
        lambda batch, *, collate_fn_map: collate(
            [(span.start, span.end) for span in batch], collate_fn_map=collate_fn_map
        ),
    )
    assert values(default_collate([{"span": Span(1, 2)}, {"span": Named(3, 4)}])) == {"span": [[1, 3], [2, 4]]}
    (batch,) = DataLoader([Named(1, 2), Named(5, 6)], batch_size=2)
    assert values(batch) == [[1, 5], [2, 6]]


def test_without_a_table_only_containers_are_joined():
    with pytest.raises(TypeError, match="found int"):
        collate([[1], [2]])
    assert values(collate([[1], [2]], collate_fn_map={int: lambda batch, collate_fn_map: sum(batch)})) == [3]


@pytest.mark.parametrize(
    ("samples", "error"),
    [
        ([], IndexError),
        ([{"a": 1}, {"b": 1}], KeyError),
        ([(1, 2), (1, 2, 3)], UsageError),
        ([[1], 1], TypeError),
        ([np.array(["2020-01-01"], "M8[D]")] * 2, TypeError),
        ([np.ones(1, np.longdouble)] * 2, TypeError),
    ],
)
def test_batches_that_cannot_be_joined_say_so(samples, error):
    with pytest.raises(error):
        default_collate(samples)


def test_conversion_keeps_containers_but_for_tuples():
    data = OrderedDict(a=deque([np.ones(1)]), b=(np.float32(1), "x"), c=Point(np.zeros(1), None))
    converted = default_convert(data)
    assert [type(part) for part in (converted, converted["a"], converted["b"], converted["c"])] == [
        OrderedDict,
        deque,
        list,
        Point,
    ]
    assert converted["a"][0].tolist() == [1]
    assert converted["b"][0].dtype is resilin.float32
    assert default_convert(np.array(["a"])).tolist() == ["a"]
    assert data["b"][1] == converted["b"][1] == "x"
