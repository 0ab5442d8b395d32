"""Hooks around any step, and states from elsewhere."""

import copy
import pickle

import pytest

import resilin
from resilin import optim
from resilin.errors import ResilinError, UsageError
from resilin.optim import lr_scheduler
from resilin.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def leaf(size=1):
    p = resilin.ones(size).requires_grad_()
    p.grad = resilin.ones(size)
    return p


class Own(optim.SGD):
    def step(self, closure=None):
        return super().step(closure) or "own"


class Bare(optim.Optimizer):
    """As one writes it for PyTorch."""

    def __init__(self, params):
        super().__init__(params, {})

    @resilin.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad)


@pytest.mark.parametrize("make", [Own, Bare, optim.SGD])
def test_hooks_run_once_around_a_step_that_a_subclass_defines(make):
    optimizer, calls = make([leaf()]), []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("pre of all")),
        register_optimizer_step_post_hook(lambda *_: calls.append("post of all")),
    ]
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    optimizer.step()
    for handle in handles:
        handle.remove()
    assert calls == ["pre of all", "pre", "post", "post of all"]
    optimizer.step()
    assert calls[4:] == ["pre", "post"]


def test_hooks_get_the_arguments_that_step_got():
    optimizer, seen = optim.SGD([leaf()]), []
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append((args, kwargs)))
    closure = lambda: 1  # noqa: E731
    optimizer.step(closure)
    optimizer.step(closure=closure)
    assert seen == [((optimizer, closure), {}), ((optimizer,), {"closure": closure})]


def test_a_hook_that_returns_no_pair_is_told_the_rule():
    optimizer = optim.SGD([leaf()])
    handle = optimizer.register_step_pre_hook(lambda *_: 3)
    with pytest.raises(ResilinError, match=r"must return None or \(args, kwargs\).*got 3"):
        optimizer.step()
    handle.remove()
    optimizer.step()


def test_a_hook_can_be_put_before_the_others():
    optimizer, calls = optim.SGD([leaf()]), []
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("second"))
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("first"), prepend=True)
    optimizer.state_dict()
    assert calls == ["first", "second"]


def test_an_empty_dict_of_a_hook_replaces_the_state():
    optimizer = optim.SGD([leaf()])
    optimizer.register_state_dict_post_hook(lambda o, state: {})
    assert optimizer.state_dict() == {}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_of_an_optimizer_has_no_hooks_and_steps_on_its_own(duplicate):
    p, calls = leaf(), []
    optimizer = optim.Adam([p], lr=0.1)
    if duplicate is copy.deepcopy:
        optimizer.register_step_pre_hook(lambda *_: calls.append("hook"))
    other = duplicate(optimizer)
    (q,) = other.param_groups[0]["params"]
    q.grad = resilin.ones(1)
    other.step()
    assert not calls
    assert (p.item(), q.item()) == (1, pytest.approx(0.9))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "ASGD", "RMSprop", "Adafactor"])
def test_a_state_with_plain_numbers_as_counters_steps_on_with_equal_bits(name):
    p, q = leaf(), leaf()
    one, other = getattr(optim, name)([p]), getattr(optim, name)([q])
    one.step()
    state = one.state_dict()
    for key, value in state["state"][0].items():
        if value.ndim == 0 and value.numel() == 1 and key in ("step", "mu_product", "eta", "mu"):
            state["state"][0][key] = value.item()
    other.load_state_dict(state)
    with resilin.no_grad():
        q.copy_(p)
    one.step()
    other.step()
    assert p.item() == q.item()
    assert isinstance(other.state[q]["step"], resilin.Tensor)


def test_state_that_belongs_to_no_parameter_is_saved_and_loaded():
    p = leaf()
    optimizer = optim.SGD([p])
    optimizer.state["n"] = 3
    optimizer.state[p]["pairs"] = [resilin.ones(2, dtype=resilin.float64), "name"]
    state = optimizer.state_dict()
    assert state["state"]["n"] == 3
    other = optim.SGD([q := leaf()])
    other.load_state_dict(state)
    assert other.state["n"] == 3
    assert other.state[q]["pairs"][0].dtype == resilin.float32
    assert other.state[q]["pairs"][1] == "name"


def test_a_step_that_fails_is_not_counted():
    p = leaf()
    for optimizer in (optim.Adam([p]), optim.SparseAdam([p]), optim.Adafactor([p]), optim.RAdam([p])):
        optimizer.step()
        p._grad = resilin.ones(3)
        with pytest.raises(UsageError, match="does not fit"):
            optimizer.step()
        assert float(optimizer.state[p]["step"]) == 1
        p._grad = resilin.ones(1)


def test_a_state_that_was_spoiled_is_named_at_the_step():
    p = leaf()
    optimizer = optim.Adam([p])
    optimizer.step()
    del optimizer.state[p]["step"]
    with pytest.raises(UsageError, match=r"Adam.step: .* no 'step'; was .* saved by another optimizer"):
        optimizer.step()


def test_a_parameter_that_cannot_be_written_to_is_named():
    p = resilin.ones(1).expand(3).detach().requires_grad_()
    p.grad = resilin.ones(3)
    with pytest.raises(UsageError, match="SGD: parameter 0 cannot be written to"):
        optim.SGD([p]).step()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda p: optim.SGD([p], lr="0.1"), TypeError, "SGD: lr must be a number, got '0.1'"),
        (lambda p: optim.Adam([p], betas=(0.9,)), UsageError, "two numbers"),
        (lambda p: optim.SGD([("w", p)]).add_param_group({"params": [leaf()]}), UsageError, "without names"),
        (lambda p: optim.SGD([p]).add_param_group({"params": [("w", leaf())]}), UsageError, "with names"),
    ],
)
def test_mistakes_in_groups_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make(leaf())


def test_a_scheduler_that_steps_before_its_optimizer_warns():
    optimizer = optim.SGD([leaf()], lr=1.0)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match="before the first step of its optimizer"):
        scheduler.step()
    scheduler.step()  # once is enough
    optimizer = Own([leaf()], lr=1.0)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    scheduler.step()
    assert issubclass(lr_scheduler.StepLR, lr_scheduler._LRScheduler)


def test_a_state_that_cannot_be_loaded_changes_nothing():
    parameters = [resilin.ones(2).requires_grad_(), resilin.ones(3).requires_grad_()]
    optimizer = optim.Adam(parameters, lr=0.1)
    for parameter in parameters:
        parameter.grad = resilin.ones_like(parameter)
    optimizer.step()
    broken = copy.deepcopy(optimizer.state_dict())
    broken["param_groups"][0]["lr"] = 7.0
    broken["state"][0]["step"] += 3
    broken["state"][1] = None
    with pytest.raises((AttributeError, TypeError)):
        optimizer.load_state_dict(broken)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert [optimizer.state[parameter]["step"].item() for parameter in parameters] == [1, 1]


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adagrad", "NAdam", "Rprop", "ASGD", "Lion"])
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64])
def test_a_step_whose_states_do_not_fit_changes_nothing(name, dtype):
    parameters = [resilin.ones(2, dtype=dtype).requires_grad_(), resilin.ones(3, dtype=dtype).requires_grad_()]
    optimizer = getattr(optim, name)(parameters, lr=0.1, **({"momentum": 0.9} if name == "SGD" else {}))
    for parameter in parameters:
        parameter.grad = resilin.ones_like(parameter)
    optimizer.step()
    state = optimizer.state[parameters[1]]
    state[next(key for key, value in state.items() if value.ndim == 1)] = resilin.ones(5, dtype=dtype)
    before = copy.deepcopy((parameters[0].detach(), optimizer.state_dict()["state"][0]))
    with pytest.raises(UsageError, match="does not fit parameter 1"):
        optimizer.step()
    assert resilin.equal(parameters[0], before[0])
    assert all(resilin.equal(value, before[1][key]) for key, value in optimizer.state[parameters[0]].items())
