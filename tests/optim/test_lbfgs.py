"""LBFGS against PyTorch's numbers and counts."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

import resilin
from resilin import nn, optim
from resilin.errors import UsageError
from resilin.optim.line_search import Point, strong_wolfe

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "torch_lbfgs.json").read_text())


def rosenbrock(x, y):
    """A curved valley in `x` (any length), and a bowl in `y`."""
    return (10 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum() + ((y - 2) ** 2).mean()


def make(dtype=resilin.float64):
    return [
        resilin.tensor([-1.2, 1.0, 0.5, -0.3], dtype=dtype).requires_grad_(),
        resilin.ones(2, 2, dtype=dtype).requires_grad_(),
    ]


def closure_of(optimizer, params, fn=rosenbrock):
    def closure():
        optimizer.zero_grad()
        loss = fn(*params)
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("case", CASES, ids=[str(number) for number in range(len(CASES))])
def test_every_step_equals_pytorchs(case):
    params = make()
    optimizer = optim.LBFGS(params, **case["options"])
    closure = closure_of(optimizer, params)
    for after, loss in zip(case["after"], case["losses"], strict=True):
        assert optimizer.step(closure).item() == pytest.approx(loss, rel=1e-7, abs=1e-12)
        for param, expected in zip(params, after, strict=True):
            found = param.detach().numpy().reshape(-1)
            np.testing.assert_allclose(found, expected["data"], rtol=1e-6, atol=1e-8)
    state = optimizer.state[params[0]]
    assert {name: state[name] for name in case["counts"]} == case["counts"]


def test_float32_reaches_the_minimum():
    params = make(resilin.float32)
    optimizer = optim.LBFGS(params, line_search_fn="strong_wolfe")
    for _ in range(5):
        loss = optimizer.step(closure_of(optimizer, params))
    assert loss.item() < 1e-8
    np.testing.assert_allclose(params[0].detach().numpy(), 1, atol=1e-3)


@pytest.mark.parametrize("line_search_fn", [None, "strong_wolfe"])
def test_a_saved_state_goes_on_with_equal_bits(line_search_fn):
    params = make()
    options = {"lr": 0.1, "max_iter": 3, "line_search_fn": line_search_fn}
    optimizer = optim.LBFGS(params, **options)
    optimizer.step(closure_of(optimizer, params))
    file = io.BytesIO()
    resilin.save(optimizer.state_dict(), file)
    file.seek(0)
    copies = [param.detach().clone().requires_grad_() for param in params]
    other = optim.LBFGS(copies, **options)
    other.load_state_dict(resilin.load(file))
    optimizer.step(closure_of(optimizer, params))
    other.step(closure_of(other, copies))
    for param, copy in zip(params, copies, strict=True):
        assert param.detach().numpy().tobytes() == copy.detach().numpy().tobytes()


def test_a_complex_parameter_is_its_two_parts():
    z = resilin.tensor([1 + 2j, -1 - 1j], dtype=resilin.complex128).requires_grad_()
    optimizer = optim.LBFGS([z], line_search_fn="strong_wolfe")
    for _ in range(3):
        optimizer.step(closure_of(optimizer, [z], lambda z: ((z - (3 - 1j)).abs() ** 2).sum()))
    np.testing.assert_allclose(z.detach().numpy(), 3 - 1j, atol=1e-6)


def test_a_parameter_without_gradient_stays():
    used, unused = (resilin.ones(2).requires_grad_() for _ in range(2))
    optimizer = optim.LBFGS([used, unused], lr=0.1)
    optimizer.step(closure_of(optimizer, [used], lambda x: (x * x).sum()))
    assert unused.tolist() == [1, 1]
    assert abs(used.detach().numpy()).max() < 1


def test_hooks_run_around_a_step():
    params, calls = make(), []
    optimizer = optim.LBFGS(params)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step(closure_of(optimizer, params))
    assert calls == ["before", "after"]


def test_mistakes_are_named():
    params = make()
    with pytest.raises(UsageError, match="one parameter group only"):
        optim.LBFGS([{"params": [params[0]]}, {"params": [params[1]]}])
    with pytest.raises(UsageError, match="line_search_fn must be 'strong_wolfe' or None, got 'armijo'"):
        optim.LBFGS(params, line_search_fn="armijo")
    with pytest.raises(TypeError, match="needs a closure"):
        optim.LBFGS(params).step()


@pytest.mark.parametrize("first", [0.01, 1.0, 30.0])
def test_the_line_search_ends_where_both_conditions_hold(first):
    def at(t):
        slope = np.array([4 * (t - 1) ** 3 + 0.1])
        return Point(t, (t - 1) ** 4 + 0.1 * t, slope, slope[0])

    start = at(0.0)
    found, evaluations = strong_wolfe(at, start, first, 1.0, 1e-9, 25)
    assert found.loss <= start.loss + 1e-4 * found.t * start.slope
    assert abs(found.slope) <= -0.9 * start.slope
    assert evaluations <= 10


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e30])
def test_a_loss_that_is_not_finite_reaches_the_parameters_without_warnings(line_search, factor):
    x = resilin.tensor([1.0, 1.5], requires_grad=True)
    optimizer = optim.LBFGS([x], line_search_fn=line_search, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (x * x * factor).sum() if factor == 1e30 else (x * factor).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    assert x.isnan().all() if factor != 1e30 else x.abs().max() < 1e-6


def test_states_are_loaded_into_parameters_without_a_shape_yet():
    first = optim.LBFGS(nn.Sequential(nn.LazyLinear(6)).parameters())
    first.load_state_dict(first.state_dict())
    model = nn.Linear(3, 6)
    trained = optim.LBFGS(model.parameters(), max_iter=2)
    trained.step(lambda: backward(trained, model))
    first.load_state_dict(trained.state_dict())
    assert repr(first.state_dict()["state"]) == repr(trained.state_dict()["state"])


def backward(optimizer, model):
    optimizer.zero_grad()
    loss = (model(resilin.ones(2, 3)) ** 2).sum()
    loss.backward()
    return loss


def remembering():
    """An LBFGS of two parameters that has begun, and a new one, with their parameters."""
    made = []
    for steps in (2, 0):
        params = make()
        optimizer = optim.LBFGS(params, lr=0.1, max_iter=3)
        for _ in range(steps):
            optimizer.step(closure_of(optimizer, params))
        made += [optimizer, params]
    return made


@pytest.mark.parametrize("name", ["n_iter", "d", "t", "prev_flat_grad", "old_dirs", "old_stps", "ro", "H_diag"])
@pytest.mark.parametrize("how", ["left out", "None"])
def test_a_state_with_a_part_left_out_is_refused(name, how):
    trained, _, fresh, _ = remembering()
    state = trained.state_dict()
    if how == "None":
        state["state"][0][name] = None
    else:
        del state["state"][0][name]
    with pytest.raises(UsageError, match=f"LBFGS.load_state_dict: of parameter 0 there is .*, and no {name}: an LBFGS"):
        fresh.load_state_dict(state)
    assert not fresh.state


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("ro", lambda values: values[:-1], r"got 3 in old_dirs, 3 in old_stps, 2 in ro"),
        ("old_dirs", lambda values: [values[0][:3], *values[1:]], r"old_dirs\[0\] has the shape \[3\] in the state"),
        ("old_stps", lambda values: [*values[1:], None], r"old_stps\[2\] must be a tensor of floating point numbers"),
        ("old_stps", lambda values: 3, r"old_stps must be a list, got 3"),
        ("ro", lambda values: [*values[1:], "much"], r"ro\[2\] must be a number, or a tensor of one, got 'much'"),
        ("t", lambda value: "long", r", t must be a number"),
        ("n_iter", lambda value: [1], r", n_iter must be a number"),
        ("func_evals", lambda value: {}, r", func_evals must be a number"),
        ("H_diag", lambda value: resilin.ones(2), r"H_diag must be a number, or a tensor of one"),
        ("d", lambda value: value[1:], r", d has the shape \[7\] in the state, for this parameter it has \[8\]"),
    ],
)
def test_a_state_that_no_step_can_go_on_from_is_refused(name, change, said):
    trained, _, fresh, _ = remembering()
    state = trained.state_dict()
    state["state"][0][name] = change(state["state"][0][name])
    with pytest.raises(UsageError, match=f"of parameter 0.*{said}"):
        fresh.load_state_dict(state)
    assert not fresh.state


def test_a_state_beside_another_parameter_is_refused():
    trained, _, fresh, _ = remembering()
    state = trained.state_dict()
    state["state"] = {1: state["state"][0]}
    with pytest.raises(UsageError, match=r"of parameter 1 there is func_evals, .*keeps what it remembers of all"):
        fresh.load_state_dict(state)


@pytest.mark.parametrize("history_size", [0, 1, 2])
def test_a_loaded_memory_may_be_a_tuple_and_longer_than_what_is_kept(history_size):
    trained, _, fresh, params = remembering()
    state = trained.state_dict()
    for name in ("old_dirs", "old_stps", "ro"):
        state["state"][0][name] = tuple(state["state"][0][name])
    fresh.load_state_dict(state)
    fresh.param_groups[0]["history_size"] = history_size
    fresh.step(closure_of(fresh, params))
    assert {len(fresh.state[params[0]][name]) for name in ("old_dirs", "old_stps", "ro")} == {history_size}


def test_a_state_of_a_step_that_did_not_move_is_taken():
    x = resilin.zeros(2).requires_grad_()
    still = optim.LBFGS([x])
    still.step(closure_of(still, [x], lambda x: (x * 0).sum()))
    assert still.state[x] == {"func_evals": 1, "n_iter": 0}
    other = optim.LBFGS([resilin.zeros(2).requires_grad_()])
    other.load_state_dict(still.state_dict())
    assert other.state_dict()["state"] == still.state_dict()["state"]
