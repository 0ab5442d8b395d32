"""Containers that hold None: an entry keeps its place whatever reads it, and is no part of the state. As in PyTorch."""

import copy
import pickle
from collections import OrderedDict

import pytest

import resilin
from resilin import nn
from resilin.core.autograd.checkpoint import checkpoint_sequential


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.w = nn.Parameter(resilin.full((2,), float(number)))

    def forward(self, x):
        return x + self.w

    def extra_repr(self):
        return f"number={self.number}"


def listed(kind, *numbers):
    entries = [None if number is None else Layer(number) for number in numbers]
    return kind(*entries) if kind is nn.Sequential else kind(entries)


def shown(value):
    if isinstance(value, nn.ModuleList | nn.Sequential | list | tuple):
        return [shown(part) for part in value]
    return value.number if isinstance(value, Layer) else value


@pytest.fixture(params=[nn.ModuleList, nn.Sequential])
def kind(request):
    return request.param


def test_reading_gives_every_entry_at_its_place(kind):
    layers = listed(kind, 1, None, 3)
    assert len(layers) == 3
    assert shown(layers) == [1, None, 3]
    assert shown(list(reversed(layers))) == [3, None, 1]
    assert [(shown(layer), letter) for layer, letter in zip(layers, "abc", strict=True)] == [
        (1, "a"),
        (None, "b"),
        (3, "c"),
    ]
    assert [shown(layers[i]) for i in range(3)] == [1, None, 3]
    assert [shown(layers[-i]) for i in (1, 2, 3)] == [3, None, 1]
    assert shown(layers[resilin.tensor(1)]) is None
    assert None in layers
    assert layers[2] in layers
    assert Layer(1) not in layers
    with pytest.raises(IndexError, match="index 3 is out of range for 3 entries"):
        layers[3]
    with pytest.raises(TypeError):
        layers[1.0]
    with pytest.raises(TypeError):
        layers["0"]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (slice(1, None), [None, 3]),
        (slice(None, 2), [1, None]),
        (slice(None, None, 2), [1, 3]),
        (slice(None, None, -1), [3, None, 1]),
        (slice(-2, None), [None, 3]),
        (slice(5, None), []),
    ],
)
def test_slices_keep_none(kind, part, expected):
    layers = listed(kind, 1, None, 3)
    assert type(layers[part]) is kind
    assert shown(layers[part]) == expected


def test_writing_counts_none(kind):
    layers = listed(kind, 1, None, 3)
    layers.append(None)
    layers.extend(layer for layer in [Layer(8), None])
    assert shown(layers) == [1, None, 3, None, 8, None]
    layers.insert(1, Layer(9))
    assert shown(layers) == [1, 9, None, 3, None, 8, None]
    layers.insert(-1, Layer(7))
    assert shown(layers) == [1, 9, None, 3, None, 8, 7, None]
    assert layers.pop(2) is None
    assert shown(layers.pop(-2)) == 7
    assert shown(layers.pop(slice(3, 5))) == [None, 8]
    assert shown(layers) == [1, 9, 3, None]
    layers[0] = None
    layers[-1] = Layer(5)
    del layers[1]
    assert shown(layers) == [None, 3, 5]
    del layers[::2]
    assert shown(layers) == [3]
    assert list(layers._modules) == ["0"]


def test_adding_a_list_to_itself_doubles_it(kind):
    layers = listed(kind, 1, None)
    layers += layers
    assert shown(layers) == [1, None, 1, None]


def test_a_list_refuses_what_is_no_module(kind):
    layers = listed(kind, 1, None)
    for wrong in (lambda: layers.insert(0, 3), lambda: layers.append(3), lambda: layers.extend(3)):
        with pytest.raises(TypeError):
            wrong()
    assert shown(layers) == [1, None]


def test_only_a_module_list_takes_none_by_insert():
    layers = listed(nn.ModuleList, 1, 2)
    layers.insert(1, None)
    assert shown(layers) == [1, None, 2]
    chain = listed(nn.Sequential, 1, 2)
    with pytest.raises(TypeError, match="expected a Module, got NoneType"):
        chain.insert(1, None)
    with pytest.raises(IndexError, match="index 3 is out of range for 2 entries"):
        chain.insert(3, Layer(1))


def test_sums_and_products_keep_none():
    layers, chain = listed(nn.ModuleList, 1, None), listed(nn.Sequential, None, 2)
    more = [None]
    assert shown(layers + more) == [1, None, None]
    assert shown(layers + layers) == [1, None, 1, None]
    assert shown(chain + chain) == [None, 2, None, 2]
    assert shown(2 * chain) == [None, 2, None, 2]
    chain *= 3
    assert shown(chain) == [None, 2, None, 2, None, 2]


def test_none_is_printed_copied_and_pickled():
    layers = listed(nn.ModuleList, 1, 1, None, None, 3)
    assert repr(layers) == ("ModuleList(\n  (0-1): 2 x Layer(number=1)\n  (2-3): 2 x None\n  (4): Layer(number=3)\n)")
    assert repr(listed(nn.Sequential, 1, None)) == "Sequential(\n  (0): Layer(number=1)\n  (1): None\n)"
    assert shown(copy.copy(layers)) == shown(copy.deepcopy(layers)) == [1, 1, None, None, 3]
    assert shown(pickle.loads(pickle.dumps(layers))) == [1, 1, None, None, 3]


def test_state_and_walks_leave_none_out_without_moving_names(kind):
    layers = listed(kind, 1, None, 3)
    assert list(layers.state_dict()) == ["0.w", "2.w"]
    assert [name for name, _ in layers.named_modules()] == ["", "0", "2"]
    assert [name for name, _ in layers.named_children()] == ["0", "2"]
    assert [name for name, _ in layers.named_parameters()] == ["0.w", "2.w"]
    seen = []
    layers.apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Layer", "Layer", kind.__name__]
    assert layers.double().eval()[0].w.dtype is resilin.float64
    assert not any(name.isdigit() for name in dir(layers))
    found = layers.load_state_dict({"1.w": resilin.ones(2), "2.w": resilin.ones(2)}, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (["0.w"], [])
    found = layers.load_state_dict({"0.w": resilin.ones(2), "2.w": resilin.ones(2), "1": resilin.ones(2)}, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == ([], ["1"])


def test_a_chain_does_not_skip_none():
    chain = listed(nn.Sequential, 1, None)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        chain(resilin.zeros(2))


def test_checkpointed_chains_run_a_layer_as_often_as_it_is_named():
    layer = Layer(1)
    chain = nn.Sequential(layer, layer, layer)
    found = checkpoint_sequential(chain, 2, resilin.zeros(2, requires_grad=True), use_reentrant=False)
    assert found.tolist() == chain(resilin.zeros(2)).tolist() == [3.0, 3.0]


def test_a_dict_of_modules_keeps_none():
    layers = nn.ModuleDict(OrderedDict(a=Layer(1), b=None))
    assert (len(layers), list(layers), shown(list(layers.values()))) == (2, ["a", "b"], [1, None])
    assert "b" in layers
    assert layers["b"] is None
    assert layers.keys() & {"b"} == {"b"}
    assert [name for name, _ in reversed(layers.items())] == ["b", "a"]
    assert repr(layers) == "ModuleDict(\n  (a): Layer(number=1)\n  (b): None\n)"
    layers.update(nn.ModuleDict({"c": None, "a": None}))
    layers.update([("d", Layer(4))])
    assert [(name, shown(layer)) for name, layer in layers.items()] == [("a", None), ("b", None), ("c", None), ("d", 4)]
    assert layers.pop("c") is None
    assert shown(list(nn.ModuleDict(layers).values())) == [None, None, 4]
    assert list(layers.state_dict()) == ["d.w"]
    for wrong in (0, 3, [("a",)]):
        with pytest.raises((TypeError, ValueError)):
            nn.ModuleDict(wrong)


def test_lists_and_dicts_of_parameters_keep_none():
    values = nn.ParameterList([None, resilin.ones(1), None])
    assert [value is None for value in values] == [True, False, True]
    values[1] = None
    values[0] = resilin.zeros(1)
    values.extend(values)
    assert [value is None for value in values] == [False, True, True] * 2
    assert not any(name.isdigit() for name in dir(values))
    with pytest.raises(TypeError, match="expected an iterable of values, got Tensor"):
        nn.ParameterList(resilin.ones(2))

    named = nn.ParameterDict(OrderedDict(a=resilin.ones(1), b=None, c=resilin.zeros(1)))
    assert (len(named), named["b"], named.get("b", 3)) == (3, None, None)
    named["a"] = None
    named["a"] = resilin.ones(1)
    assert list(named.state_dict()) == ["a", "c"]  # it kept its place
    named["a"] = "text"
    named["b"] = resilin.ones(1)
    assert list(named.state_dict()) == ["c", "b"]
    assert [(key, type(value).__name__) for key, value in named.items()] == [
        ("a", "str"),
        ("b", "Parameter"),
        ("c", "Parameter"),
    ]


def test_an_absent_buffer_is_found_as_none():
    module = nn.Module()
    module.register_buffer("b", None)
    module.register_parameter("p", None)
    assert module.get_buffer("b") is None
    with pytest.raises(AttributeError, match="has no buffer 'c'"):
        module.get_buffer("c")
    with pytest.raises(AttributeError, match="has no parameter 'p'"):
        module.get_parameter("p")
