"""States whose tensors are numpy arrays, as `np.savez` keeps them, are taken over as tensors."""

import numpy as np
import pytest

import resilin
from resilin import optim
from resilin.errors import UsageError

KINDS = {
    "ASGD": {},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "LBFGS": {"max_iter": 3, "line_search_fn": "strong_wolfe"},
    "Lion": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {},
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "SparseAdam": {},
}


def made(name, shapes=((3, 2), (4, 1), (1, 1), ())):
    """An optimizer and its parameters."""
    resilin.manual_seed(3)
    params = [resilin.randn(shape).requires_grad_() for shape in shapes]
    return getattr(optim, name)(params, **KINDS[name]), params


def step(optimizer, params, steps):
    def closure():
        optimizer.zero_grad()
        loss = sum((param * param * (0.3 + param)).sum() for param in params)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def arrays(thing, number=np.asarray):
    """`thing` with arrays in the place of tensors, and of numbers what `number` makes of them."""
    if isinstance(thing, resilin.Tensor):
        return thing.detach().numpy().copy()
    if isinstance(thing, dict):
        return {key: arrays(value, number) for key, value in thing.items()}
    if isinstance(thing, list):
        return [arrays(value, number) for value in thing]
    return number(thing) if type(thing) in (int, float) else thing


@pytest.mark.parametrize("name", KINDS)
def test_training_goes_on_from_arrays_with_the_same_bits(name):
    shapes = ((3, 2), (4, 1)) if name == "Adafactor" else ((3, 2), (4, 1), (1, 1), ())
    first, params = made(name, shapes)
    step(first, params, 2)
    state = first.state_dict()
    saved = {"state": arrays(state["state"]), "param_groups": state["param_groups"]}
    other, others = made(name, shapes)
    with resilin.no_grad():
        for here, there in zip(others, params, strict=True):
            here.copy_(there)
    other.load_state_dict(saved)
    step(first, params, 2)
    step(other, others, 2)
    assert [param.tolist() for param in others] == [param.tolist() for param in params]
    assert repr(other.state_dict()) == repr(first.state_dict())


@pytest.mark.parametrize("number", [np.float32, np.int64, np.float64])
def test_counters_may_be_scalars_of_numpy(number):
    optimizer, params = made("AdamW")
    step(optimizer, params, 1)
    state = optimizer.state_dict()
    for entry in state["state"].values():
        entry["step"] = number(7)
    optimizer.load_state_dict(state)
    step(optimizer, params, 1)
    assert {entry["step"].item() for entry in optimizer.state.values()} == {8}
    assert {entry["step"].dtype for entry in optimizer.state.values()} == {resilin.float32}


def test_a_loaded_state_does_not_share_memory_with_the_arrays():
    optimizer, params = made("AdamW")
    step(optimizer, params, 1)
    state = optimizer.state_dict()
    saved = {"state": arrays(state["state"]), "param_groups": state["param_groups"]}
    for entry in saved["state"].values():
        entry["exp_avg"].setflags(write=False)
    before = saved["state"][0]["exp_avg"].copy()
    optimizer.load_state_dict(saved)
    step(optimizer, params, 1)
    np.testing.assert_array_equal(saved["state"][0]["exp_avg"], before)


def test_entries_of_the_users_that_no_tensor_can_hold_are_carried_along():
    optimizer, params = made("AdamW")
    step(optimizer, params, 1)
    state = optimizer.state_dict()
    state["state"][0]["words"] = np.array(["a", "b"])
    optimizer.load_state_dict(state)
    assert optimizer.state[params[0]]["words"].tolist() == ["a", "b"]


@pytest.mark.parametrize("value", [0.5, "x", np.zeros((3, 2), np.int64), np.zeros(5, np.float32)])
def test_a_momentum_that_is_no_tensor_of_numbers_is_refused(value):
    optimizer, params = made("SGD")
    step(optimizer, params, 1)
    state = optimizer.state_dict()
    state["state"][0] = {"momentum_buffer": value}
    with pytest.raises(UsageError, match=r"momentum_buffer (must be a tensor of floating|has the shape)"):
        optimizer.load_state_dict(state)


def stepped(name, shape, **options):
    """An optimizer of one parameter after a step, and what it then steps again by."""
    resilin.manual_seed(3)
    param = resilin.randn(shape).requires_grad_()
    optimizer = getattr(optim, name)([param], **{**KINDS[name], **options})
    step(optimizer, [param], 1)
    return optimizer, param


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 3, 4)])
def test_adafactors_means_are_taken_from_arrays_in_every_shape(shape):
    first, param = stepped("Adafactor", shape)
    other, there = stepped("Adafactor", shape)
    state = first.state_dict()
    other.load_state_dict({"state": arrays(state["state"]), "param_groups": state["param_groups"]})
    step(first, [param], 1)
    step(other, [there], 1)
    assert there.tolist() == param.tolist()


@pytest.mark.parametrize("name", ["ASGD", "AdamW", "Adafactor", "NAdam", "RAdam", "Rprop"])
@pytest.mark.parametrize("made", [resilin.tensor, np.asarray])
def test_a_count_of_steps_may_have_a_dimension_of_one(name, made):
    first, param = stepped(name, (3,))
    other, there = stepped(name, (3,))
    state = first.state_dict()
    state["state"][0]["step"] = made([1.0])
    other.load_state_dict(state)
    step(first, [param], 1)
    step(other, [there], 1)
    assert there.tolist() == param.tolist()


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor"])
@pytest.mark.parametrize(
    "made", [lambda array: array.astype(np.longdouble), lambda array: np.ma.masked_array(array, mask=array > 0)]
)
def test_arrays_that_no_tensor_can_be_are_refused_and_nothing_is_changed(name, made):
    optimizer, _ = stepped(name, (3,))
    state = optimizer.state_dict()
    before = repr(state)
    entry = next(key for key in state["state"][0] if key != "step")
    changed = {"state": arrays(state["state"]), "param_groups": state["param_groups"]}
    changed["state"][0][entry] = made(changed["state"][0][entry])
    with pytest.raises(UsageError, match=f"{entry} must be a tensor, or an array of a dtype that tensors have"):
        optimizer.load_state_dict(changed)
    assert repr(optimizer.state_dict()) == before


def test_arrays_in_the_other_order_of_bytes_are_taken():
    first, param = stepped("AdamW", (3,))
    other, there = stepped("AdamW", (3,))
    state = first.state_dict()
    swapped = arrays(state["state"])
    swapped[0]["exp_avg"] = swapped[0]["exp_avg"].astype(">f4")
    other.load_state_dict({"state": swapped, "param_groups": state["param_groups"]})
    step(first, [param], 1)
    step(other, [there], 1)
    assert there.tolist() == param.tolist()
