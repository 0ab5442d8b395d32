"""Pruning holds parts of parameters at 0; masks are those that PyTorch 2.13 gives for the same numbers."""

from __future__ import annotations

import pytest

import resilin
from resilin import nn
from resilin.nn.utils import prune


@pytest.fixture
def layer():
    made = nn.Linear(4, 3)
    with resilin.no_grad():
        made.weight.copy_(resilin.arange(12.0).reshape(3, 4) - 5)
        made.bias.copy_(resilin.tensor([0.1, 0.2, 0.3]))
    return made


def test_a_pruned_parameter_is_its_original_times_a_mask(layer):
    assert prune.l1_unstructured(layer, "weight", 3) is layer
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight_orig"]
    assert [name for name, _ in layer.named_buffers()] == ["weight_mask"]
    assert layer.weight_mask.tolist() == [[1.0] * 4, [0.0, 0.0, 0.0, 1.0], [1.0] * 4]
    assert resilin.equal(layer.weight, layer.weight_orig * layer.weight_mask)
    assert prune.is_pruned(nn.Sequential(layer))


def test_pruned_entries_get_no_gradient_and_stay_0_through_steps(layer):
    prune.l1_unstructured(layer, "weight", 0.5)
    optimizer = resilin.optim.SGD(layer.parameters(), lr=0.1)
    layer(resilin.ones(2, 4)).sum().backward()
    assert not layer.weight_orig.grad[layer.weight_mask == 0].any()
    optimizer.step()
    layer(resilin.ones(2, 4))
    assert not layer.weight[layer.weight_mask == 0].any()


def test_methods_add_up_on_what_is_left(layer):
    prune.ln_structured(layer, "weight", 1, 2, 0)
    assert layer.weight_mask.tolist() == [[1.0] * 4, [0.0] * 4, [1.0] * 4]
    prune.l1_unstructured(layer, "weight", 0.5)
    assert layer.weight_mask.tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0] * 4, [0.0, 1.0, 1.0, 1.0]]
    (entry,) = layer._forward_pre_hooks.values()
    assert [type(method) for method in entry.call] == [prune.LnStructured, prune.L1Unstructured]
    prune.ln_structured(layer, "weight", 0.5, 2, 1)
    assert layer.weight_mask.tolist() == [[0.0] * 4, [0.0] * 4, [0.0, 0.0, 1.0, 1.0]]


def test_global_pruning_looks_at_all_parameters_as_one(layer):
    prune.global_unstructured([(layer, "weight"), (layer, "bias")], prune.L1Unstructured, amount=0.4)
    assert layer.weight_mask.tolist() == [[1.0] * 4, [0.0, 0.0, 0.0, 1.0], [1.0] * 4]
    assert layer.bias_mask.tolist() == [0.0, 0.0, 0.0]
    scores = resilin.arange(12.0).reshape(3, 4).flip(1)
    prune.l1_unstructured(layer, "weight", 3, importance_scores=scores)
    assert layer.weight_mask.tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0] * 4]


def test_removing_makes_pruning_permanent(layer):
    original = layer.weight
    prune.custom_from_mask(layer, "weight", resilin.eye(3, 4))
    expected = layer.weight.tolist()
    prune.remove(layer, "weight")
    assert not prune.is_pruned(layer)
    assert layer.weight is original
    assert layer.weight.tolist() == expected
    assert not list(layer.buffers())
    with pytest.raises(ValueError, match="has to be pruned before"):
        prune.remove(layer, "weight")


def test_random_pruning_takes_the_share_asked_for(layer):
    prune.random_unstructured(layer, "weight", 0.25)
    assert layer.weight_mask.sum() == 9
    other = prune.random_structured(nn.Linear(4, 3), "weight", 1, dim=1)
    assert sorted(other.weight_mask.sum(0).tolist()) == [0.0, 3.0, 3.0, 3.0]


def test_a_pruned_state_loads_into_a_pruned_module(layer):
    other = prune.identity(nn.Linear(4, 3), "weight")
    other.load_state_dict(prune.l1_unstructured(layer, "weight", 2).state_dict())
    other(resilin.ones(1, 4))
    assert resilin.equal(other.weight, layer.weight)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda m: prune.l1_unstructured(m, "weight", -1), ValueError, "float in the range"),
        (lambda m: prune.l1_unstructured(m, "weight", 1.5), ValueError, "float in the range"),
        (lambda m: prune.l1_unstructured(m, "weight", "a"), TypeError, "Invalid type for amount"),
        (lambda m: prune.ln_structured(m, "weight", 5, 2, 0), ValueError, "number of parameters to prune=3"),
        (lambda m: prune.ln_structured(m, "weight", 1, 2, 7), IndexError, "invalid dim 7"),
        (lambda m: prune.ln_structured(m, "bias", 0.5, 2, 0), ValueError, "multidimensional"),
        (lambda m: prune.custom_from_mask(m, "weight", resilin.ones(3)), ValueError, r"expected a mask \(3, 4\)"),
        (lambda m: prune.l1_unstructured(m, "nothing", 1), AttributeError, "nothing"),
    ],
)
def test_a_wrong_request_changes_nothing(layer, make, error, text):
    with pytest.raises(error, match=text):
        make(layer)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert not prune.is_pruned(layer)
