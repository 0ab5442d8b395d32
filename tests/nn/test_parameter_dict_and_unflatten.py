"""ParameterDict is a dict whose tensors train; Unflatten undoes Flatten; distances are functions as modules."""

import pytest

import resilin
from resilin import nn


def test_a_parameter_dict_registers_tensors_and_keeps_other_values():
    held = nn.ParameterDict({"a": resilin.zeros(2, 3), "b": 3})
    assert isinstance(held["a"], nn.Parameter)
    assert held["b"] == 3
    assert [*held] == ["a", "b"]
    assert list(held.state_dict()) == ["a"]
    assert repr(held).split("\n")[1:3] == [
        "    (a): Parameter containing: [resilin.float32 of size 2x3]",
        "    (b): Object of type: int",
    ]


def test_a_parameter_dict_behaves_like_a_dict():
    held = nn.ParameterDict([("a", resilin.zeros(1)), ("b", resilin.ones(1))])
    other = held | nn.ParameterDict({"c": resilin.ones(2)})
    assert list(other) == ["a", "b", "c"]
    assert list(reversed(other)) == ["c", "b", "a"]
    assert other["a"] is held["a"]
    assert other.popitem()[0] == "c"
    assert other.pop("a").shape == (1,)
    assert "a" not in other
    assert other.get("a") is None
    assert other.setdefault("d", resilin.ones(3)).shape == (3,)
    other["d"] = 5  # a parameter gives way to a plain value
    assert [name for name, _ in other.named_parameters()] == ["b"]
    other.clear()
    assert len(other) == 0
    with pytest.raises(KeyError, match="empty"):
        other.popitem()
    with pytest.raises(KeyError):
        held["z"]
    with pytest.raises(TypeError, match="keys must be strings"):
        held[1] = 2
    with pytest.raises(KeyError, match="take another key"):
        held["forward"] = resilin.ones(1)


def test_unflatten_undoes_flatten():
    x = resilin.randn(2, 3, 4)
    layer = nn.Unflatten(1, (3, -1))
    assert bool((layer(nn.Flatten()(x)) == x).all())
    assert repr(layer) == "Unflatten(dim=1, unflattened_size=(3, -1))"
    with pytest.raises(TypeError, match="tuple of ints, but found type int"):
        nn.Unflatten(1, 2)
    with pytest.raises(TypeError, match="float at pos 1"):
        nn.Unflatten(1, (2, 0.5))
