"""Optimizers against PyTorch's numbers, and the layout of their state."""

import json
from pathlib import Path

import numpy as np
import pytest

import resilin
from resilin import nn, optim
from resilin.errors import UsageError, UsageTypeError


def unpack(value):
    return resilin.tensor(np.array(value["data"], dtype=value["dtype"]).reshape(value["shape"]))


def run(case, dtype=None):
    """Replay a fixture; yields the optimizer, the parameters and PyTorch's ones after each step."""
    params = [unpack(value).to(dtype or resilin.float64).requires_grad_() for value in case["start"]]
    optimizer = getattr(optim, case["name"])(params, **case["options"])
    for grads, after in zip(case["grads"], case["after"], strict=True):
        for param, grad in zip(params, grads, strict=True):
            param.grad = None if grad is None else unpack(grad).to(param.dtype)
        optimizer.step()
        yield optimizer, params, after


def test_every_optimizer_has_a_file_of_its_own_under_pytorchs_name():
    private = {"Adafactor": "_adafactor", "Muon": "_muon", "SparseAdam": "sparse_adam"}
    kinds = [one for one in vars(optim).values() if isinstance(one, type) and issubclass(one, optim.Optimizer)]
    assert len(kinds) == 17
    for kind in kinds:
        assert kind.__module__ == f"resilin.optim.{private.get(kind.__name__, kind.__name__.lower())}"


def test_every_step_equals_pytorchs(optimizers_case):
    for _, params, after in run(optimizers_case):
        for param, expected in zip(params, after, strict=True):
            np.testing.assert_allclose(param.detach().numpy(), unpack(expected).numpy(), rtol=1e-9, atol=1e-10)


def test_every_step_in_float32_equals_pytorchs_within_rounding(optimizers_case):
    for _, params, after in run(optimizers_case, resilin.float32):
        for param, expected in zip(params, after, strict=True):
            np.testing.assert_allclose(param.detach().numpy(), unpack(expected).numpy(), rtol=2e-5, atol=2e-6)


def test_the_state_has_pytorchs_layout_and_values(optimizers_case):
    *_, (optimizer, _, _) = run(optimizers_case)
    state = optimizer.state_dict()["state"]
    expected = {int(number): entry for number, entry in optimizers_case["state"].items()}
    expected = {
        number: {name: value for name, value in entry.items() if value is not None}
        for number, entry in expected.items()
    }
    expected = {number: entry for number, entry in expected.items() if entry}
    assert {number: set(entry) for number, entry in state.items()} == {n: set(entry) for n, entry in expected.items()}
    for number, entry in expected.items():
        for name, value in entry.items():
            np.testing.assert_allclose(state[number][name].numpy(), unpack(value).numpy(), rtol=1e-9, atol=1e-10)


def test_a_state_dict_round_trip_continues_with_equal_bits(optimizers_case):
    steps = run(optimizers_case, resilin.float32)
    for _ in range(3):
        optimizer, params, _ = next(steps)
    copies = [param.detach().clone().requires_grad_() for param in params]
    other = type(optimizer)(copies, lr=0.7)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    for _, params, _ in steps:
        for copy, param in zip(copies, params, strict=True):
            copy.grad = param.grad
        other.step()
        for copy, param in zip(copies, params, strict=True):
            assert copy.detach().numpy().tobytes() == param.detach().numpy().tobytes()


def test_loading_copies_the_state():
    param = resilin.ones(3).requires_grad_()
    param.grad = resilin.ones(3)
    first, second = optim.Adam([param]), optim.Adam([param])
    first.step()
    second.load_state_dict(first.state_dict())
    first.step()
    assert second.state[param]["step"].item() == 1
    assert first.state[param]["step"].item() == 2


def test_a_step_raises_the_versions_of_the_parameters():
    param = resilin.ones(3).requires_grad_()
    loss = (param * param).sum()
    param.grad = resilin.ones(3)
    before = param._version
    optim.SGD([param], lr=0.1).step()
    assert param._version > before
    with pytest.raises(RuntimeError, match="modified"):
        loss.backward()


def test_groups_have_their_own_options():
    first, second = (resilin.zeros(1).requires_grad_() for _ in range(2))
    optimizer = optim.SGD([{"params": [first]}, {"params": [second], "lr": 10.0}], lr=1.0)
    first.grad, second.grad = resilin.ones(1), resilin.ones(1)
    optimizer.step()
    assert (first.item(), second.item()) == (-1, -10)
    assert [group["lr"] for group in optimizer.state_dict()["param_groups"]] == [1.0, 10.0]
    assert [group["params"] for group in optimizer.state_dict()["param_groups"]] == [[0], [1]]


def test_a_group_can_be_added_later():
    first, second = (resilin.zeros(1).requires_grad_() for _ in range(2))
    optimizer = optim.SGD([first], lr=1.0, momentum=0.5)
    optimizer.add_param_group({"params": second, "momentum": 0})
    assert optimizer.param_groups[1]["params"][0] is second
    assert (optimizer.param_groups[1]["lr"], optimizer.param_groups[1]["momentum"]) == (1.0, 0)
    with pytest.raises(UsageError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [second]})


def test_named_parameters_are_taken_too():
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.named_parameters(), lr=0.1)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.param_groups[0]["params"] == list(model.parameters())


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda p: optim.SGD([], lr=0.1), UsageError, "no parameters"),
        (lambda p: optim.SGD(p, lr=0.1), TypeError, "put it in a list"),
        (lambda p: optim.SGD(5, lr=0.1), TypeError, "an iterable of tensors or dicts, got int"),
        (lambda p: optim.SGD([p * 2], lr=0.1), UsageError, "leaf tensors only"),
        (lambda p: optim.SGD([3.0], lr=0.1), TypeError, "got float"),
        (lambda p: optim.SGD({p}, lr=0.1), TypeError, "no order"),
        (lambda p: optim.SGD([p], lr=-1), UsageError, "lr must not be negative"),
        (lambda p: optim.SGD([p], lr=float("nan")), UsageError, "lr must be a number of at least 0, got nan"),
        (lambda p: optim.SGD([p], maximize="no"), UsageTypeError, "SGD: maximize must be True or False, got 'no'"),
        (lambda p: optim.SGD([p], nesterov="no"), UsageTypeError, "SGD: nesterov must be True or False, got 'no'"),
        (lambda p: optim.AdamW([p], amsgrad=None), UsageTypeError, "AdamW: amsgrad must be True or False, got None"),
        (lambda p: optim.Adam([p], foreach="no"), UsageTypeError, "Adam: foreach must be True or False, got 'no'"),
        (lambda p: optim.RMSprop([p], centered=2), UsageTypeError, "RMSprop: centered must be True or False, got 2"),
        (lambda p: optim.SGD([p], lr=1, momentum=-1e-13), UsageError, "momentum must not be negative"),
        (lambda p: optim.SGD([p], lr=-1e-11), UsageError, "lr must not be negative"),
        (lambda p: optim.SGD([p], lr=1, nesterov=True), UsageError, "nesterov"),
        (lambda p: optim.Adam([p], betas=(0.9, 1.0)), UsageError, "betas"),
        (lambda p: optim.AdamW([p], eps=-1), UsageError, "AdamW: eps"),
    ],
)
def test_mistakes_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make(resilin.ones(2).requires_grad_())


def test_a_state_of_other_groups_is_refused():
    one = optim.SGD([resilin.ones(1).requires_grad_()], lr=0.1)
    two = optim.SGD([resilin.ones(1).requires_grad_(), resilin.ones(1).requires_grad_()], lr=0.1)
    with pytest.raises(UsageError, match=r"groups of \[2\] parameters in the state, \[1\] here"):
        one.load_state_dict(two.state_dict())


def test_zero_grad_forgets_or_clears():
    param = resilin.ones(2).requires_grad_()
    optimizer = optim.SGD([param], lr=0.1)
    param.grad = resilin.ones(2)
    optimizer.zero_grad(set_to_none=False)
    assert param.grad.tolist() == [0, 0]
    optimizer.zero_grad()
    assert param.grad is None


def test_a_closure_is_evaluated_with_gradients():
    param = resilin.tensor([2.0]).requires_grad_()
    optimizer = optim.SGD([param], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (param * param).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4
    assert param.item() == 1


def test_hooks_run_before_and_after_a_step_until_removed():
    param = resilin.ones(1).requires_grad_()
    optimizer, calls = optim.SGD([param], lr=0.1), []
    before = optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step()
    before.remove()
    optimizer.step()
    assert calls == ["before", "after", "after"]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_complex_parameter_is_updated_as_its_two_parts(name):
    rng = np.random.default_rng(0)
    start, grads = rng.standard_normal((3, 2)), rng.standard_normal((4, 3, 2))
    pairs = resilin.tensor(start).requires_grad_()
    whole = resilin.tensor(start.view(np.complex128)[:, 0]).requires_grad_()
    options = {"lr": 0.1, "weight_decay": 0.1, **({"amsgrad": True} if name != "SGD" else {"momentum": 0.9})}
    optimizers = [getattr(optim, name)([param], **options) for param in (pairs, whole)]
    for grad in grads:
        pairs.grad, whole.grad = resilin.tensor(grad), resilin.tensor(grad.view(np.complex128)[:, 0])
        for optimizer in optimizers:
            optimizer.step()
    found = whole.detach().numpy()
    np.testing.assert_allclose(np.stack([found.real, found.imag], -1), pairs.detach().numpy(), rtol=1e-12)


def test_state_hooks_see_and_replace_what_is_saved_and_loaded():
    param = resilin.ones(1).requires_grad_()
    optimizer, calls = optim.SGD([param], lr=0.1), []
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("collect"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "note": 1})
    state = optimizer.state_dict()
    assert state["note"] == 1

    def halve(o, state):
        (group,) = state["param_groups"]
        return {**state, "param_groups": [{**group, "lr": group["lr"] / 2}]}

    optimizer.register_load_state_dict_pre_hook(halve)
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append(o.param_groups[0]["lr"]))
    optimizer.load_state_dict(state)
    assert calls == ["collect", 0.05]


def test_groups_and_repr_are_pytorchs():
    cases = json.loads((Path(__file__).parents[1] / "fixtures" / "torch_optimizer_groups.json").read_text())
    assert {case["name"] for case in cases} == {*optim.__all__} - {"Lion", "Optimizer", "lr_scheduler", "swa_utils"}
    for case in cases:
        optimizer = getattr(optim, case["name"])([resilin.ones(2, 2).requires_grad_()])
        assert repr(optimizer) == case["repr"]
        (group,) = optimizer.state_dict()["param_groups"]
        assert {k: list(v) if isinstance(v, tuple) else v for k, v in group.items()} == case["group"]


def test_repr_shows_the_options_of_each_group():
    text = repr(optim.SGD([resilin.ones(1).requires_grad_()], lr=0.1))
    assert text == (
        "SGD (\nParameter Group 0\n    dampening: 0\n    differentiable: False\n    foreach: None\n    fused: None\n"
        "    lr: 0.1\n    maximize: False\n    momentum: 0\n    nesterov: False\n    weight_decay: 0\n)"
    )
    two = repr(optim.SGD([{"params": [resilin.ones(1).requires_grad_()]} for _ in range(2)], lr=0.1))
    assert two == text[:-1] + "\n" + text[len("SGD (\n") :].replace("Group 0", "Group 1")


def test_a_parameter_with_strides_is_updated_in_place():
    base = resilin.zeros(3, 4)
    param = base.t().requires_grad_()
    param.grad = resilin.ones(4, 3)
    optim.AdamW([param], lr=0.1, weight_decay=0).step()
    assert base.numpy() == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda p: optim.AdamW([p], lr=0.1), "exp_avg"),
        (lambda p: optim.SGD([p], lr=0.1, momentum=0.9), "momentum_buffer"),
    ],
)
def test_state_of_another_shape_is_named_at_the_step(make, name):
    param = nn.Parameter(resilin.zeros(1000))
    optimizer = make(param)
    param.grad = resilin.ones(1000)
    optimizer.step()
    optimizer.state[param][name] = resilin.zeros(3)
    with pytest.raises(UsageError, match=rf"{name} of shape \[3\] does not fit parameter 0 of shape \[1000\]"):
        optimizer.step()


def test_a_hook_before_a_step_can_replace_the_closure():
    optimizer = optim.SGD([resilin.ones(1).requires_grad_()], lr=0.1)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, lambda: 5), {}))
    assert optimizer.step() == 5


def test_flags_may_be_0_or_1_or_of_numpy():
    param = resilin.zeros(2).requires_grad_()
    for value in (0, 1, np.bool_(True), np.array(False)):
        optim.SGD([param], maximize=value)


def test_a_flag_in_a_state_is_checked():
    optimizer = optim.SGD([resilin.zeros(2).requires_grad_()])
    state = optimizer.state_dict()
    state["param_groups"][0]["maximize"] = "no"
    with pytest.raises(UsageTypeError, match=r"param_groups\[0\]: SGD: maximize must be True or False, got 'no'"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda params: optim.SGD(params, lr=0.1), 0.4),
        (lambda params: optim.SGD(params, lr=0.1, momentum=0.9), -0.41441),
        (lambda params: optim.Adam(params, lr=0.1), 0.4),
        (lambda params: optim.RMSprop(params, lr=0.1), -2.657984),
        (lambda params: optim.Adagrad(params, lr=0.1), 0.6360081),
    ],
)
def test_a_parameter_that_is_given_twice_is_warned_of_and_moved_twice(make, expected):  # values of PyTorch
    p, q = nn.Parameter(resilin.ones(1)), nn.Parameter(resilin.ones(1))
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = make(each for each in (p, q, p))
    assert optimizer.param_groups[0]["params"] == [p, q, p]
    for _ in range(3):
        p.grad = resilin.ones(1)
        optimizer.step()
    assert p.item() == pytest.approx(expected, rel=1e-5)
    assert q.item() == 1


def test_a_parameter_is_looked_for_twice_in_every_way_of_giving_it():
    p, q = nn.Parameter(resilin.ones(2)), nn.Parameter(resilin.ones(2))
    for params in ([p, p], [{"params": [q, p, q]}], [("a", p), ("b", p)]):
        with pytest.warns(UserWarning, match="AdamW: optimizer contains a parameter group with duplicate parameters"):
            optim.AdamW(params)
    optimizer = optim.SGD([p], lr=0.1)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer.add_param_group({"params": [q, q]})
    with pytest.raises(UsageError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [q]})
    with pytest.raises(UsageError, match="more than one parameter group"):
        optim.SGD([{"params": [p]}, {"params": [q, p]}], lr=0.1)
