"""Schedulers against PyTorch's rates."""

import io
from collections import Counter

import numpy as np
import pytest

import resilin
from resilin import optim
from resilin.errors import UsageError
from resilin.optim import lr_scheduler, swa_utils

pytestmark = pytest.mark.filterwarnings("ignore:.*before the first step of its optimizer")  # rates need no steps


def make_optimizer(lr=0.1):
    return optim.SGD([resilin.zeros(1).requires_grad_()], lr=lr, momentum=0.9)


def make_chained(optimizer):
    warmup = lr_scheduler.ConstantLR(optimizer, factor=0.1, total_iters=3)
    return lr_scheduler.ChainedScheduler([warmup, lr_scheduler.ExponentialLR(optimizer, gamma=0.9)])


def make_scheduler(name, options, optimizer):
    if name == "MultiplicativeLR":
        return lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 1 - 0.5 / epoch)
    if name == "SWALR":
        return swa_utils.SWALR(optimizer, **options)
    if name == "ChainedScheduler":
        return make_chained(optimizer)
    if name != "SequentialLR":
        return getattr(lr_scheduler, name)(optimizer, **options)
    if "nested" in options:
        parts = [make_chained(optimizer), lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=4)]
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[6])
    parts = [
        lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=8),
        lr_scheduler.ExponentialLR(optimizer, gamma=0.8),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4, 12])


def walk(case, scheduler, optimizer, start, stop):
    """Rates and momenta before the step `start` and after each one up to `stop`."""
    seen = [(optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"])]
    for step in range(start, stop):
        scheduler.step(*([case["metrics"][step]] if "metrics" in case else []))
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
    return np.array(seen)


def test_rates_and_momenta_equal_pytorchs(schedulers_case):
    optimizer = make_optimizer()
    scheduler = make_scheduler(schedulers_case["name"], schedulers_case["options"], optimizer)
    seen = walk(schedulers_case, scheduler, optimizer, 0, len(schedulers_case["rates"]) - 1)
    expected = np.array([schedulers_case["rates"], schedulers_case["momenta"]]).T
    np.testing.assert_allclose(seen, expected, rtol=1e-12, atol=1e-15)
    assert scheduler.get_last_lr() == [optimizer.param_groups[0]["lr"]]


def test_a_checkpoint_goes_on_with_equal_rates(schedulers_case):
    optimizer, other = make_optimizer(), make_optimizer()
    scheduler = make_scheduler(schedulers_case["name"], schedulers_case["options"], optimizer)
    again = make_scheduler(schedulers_case["name"], schedulers_case["options"], other)
    walk(schedulers_case, scheduler, optimizer, 0, 7)
    file = io.BytesIO()
    resilin.save([scheduler.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    saved, saved_optimizer = resilin.load(file)
    again.load_state_dict(saved)
    other.load_state_dict(saved_optimizer)
    stop = len(schedulers_case["rates"]) - 1
    mine = walk(schedulers_case, scheduler, optimizer, 7, stop)
    assert mine.tolist() == walk(schedulers_case, again, other, 7, stop).tolist()


def test_lambda_lr_multiplies_the_initial_rate_of_each_group():
    params = [resilin.zeros(1).requires_grad_() for _ in range(2)]
    optimizer = optim.SGD([{"params": [params[0]]}, {"params": [params[1]], "lr": 2.0}], lr=1.0)
    scheduler = lr_scheduler.LambdaLR(optimizer, [lambda epoch: 0.5**epoch, lambda epoch: 1 + epoch])
    scheduler.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.25, 6.0]
    assert scheduler.state_dict()["lr_lambdas"] == [None, None]


def test_lambda_lr_keeps_the_attributes_of_callable_objects():
    class Slope:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, epoch):
            return self.factor

    saved = lr_scheduler.LambdaLR(make_optimizer(), Slope(3)).state_dict()
    other = lr_scheduler.LambdaLR(make_optimizer(), Slope(1))
    other.load_state_dict(saved)
    other.step()
    assert other.get_last_lr() == [pytest.approx(0.3)]


def test_a_resumed_scheduler_needs_the_initial_rates():
    for kind in (UsageError, KeyError):
        with pytest.raises(kind, match=r"^StepLR: .*load the optimizer's state first$"):
            lr_scheduler.StepLR(make_optimizer(), 3, last_epoch=4)


def test_one_cycle_ends_after_its_steps():
    scheduler = lr_scheduler.OneCycleLR(make_optimizer(), max_lr=1.0, total_steps=3)
    for _ in range(3):  # as a loop over all steps does
        scheduler.step()
    with pytest.raises(UsageError, match="step 4 of a cycle of 3 steps"):
        scheduler.step()


def test_one_cycle_moves_the_first_beta_of_adam():
    optimizer = optim.Adam([resilin.zeros(1).requires_grad_()])
    lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    assert optimizer.param_groups[0]["betas"] == (0.95, 0.999)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda o: lr_scheduler.LambdaLR(o, [abs, abs]), "2 functions for 1"),
        (lambda o: lr_scheduler.LinearLR(o, start_factor=0), "start_factor"),
        (lambda o: lr_scheduler.OneCycleLR(o, 1.0), "total_steps"),
        (lambda o: lr_scheduler.OneCycleLR(o, 1.0, 10, anneal_strategy="step"), "anneal_strategy"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=1.0), "factor must be below 1"),
        (lambda o: lr_scheduler.MultiplicativeLR(o, [abs, abs]), "MultiplicativeLR: 2 functions for 1"),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=0), "T_0 must be an integer above 0, got 0"),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, T_mult=1.5), "T_mult must be an integer"),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2).step(-1), "epoch must not be negative, got -1"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, mode="saw"), "mode must be one of triangular"),
        (lambda o: lr_scheduler.CyclicLR(o, [0.1, 0.2], 1.0), "base_lr has 2 values for 1"),
        (lambda o: swa_utils.SWALR(o, 0.1, anneal_strategy="step"), "anneal_strategy must be 'cos' or 'linear'"),
        (lambda o: swa_utils.SWALR(o, 0.1, anneal_epochs=-1), "anneal_epochs"),
        (lambda o: lr_scheduler.ChainedScheduler([]), "at least one"),
        (lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ReduceLROnPlateau(o)]), "needs a metric"),
        (lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.StepLR(o, 1)], [3]), "0 milestones, got 1"),
        (lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.StepLR(make_optimizer(), 1)], []), "another optimizer"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(UsageError, match=words):
        make(make_optimizer())


MAKERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1.0),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 1.0),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=3),
    "ReduceLROnPlateau": lr_scheduler.ReduceLROnPlateau,
    "SWALR": lambda o: swa_utils.SWALR(o, 0.1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_only_optimizers_can_be_scheduled(name):
    with pytest.raises(TypeError, match=f"{name}: expected an Optimizer, got int"):
        MAKERS[name](3)


@pytest.mark.parametrize("name", MAKERS)
def test_only_dicts_are_states(name):
    optimizer = make_optimizer()
    for owner in (MAKERS[name](optimizer), optimizer, make_chained(optimizer)):
        with pytest.raises(TypeError, match=f"{type(owner).__name__}.load_state_dict: expected the dict .* got list"):
            owner.load_state_dict([])


def test_cosine_restarts_take_fractions_of_an_epoch():
    optimizer = make_optimizer()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2, T_mult=2)
    scheduler.step(1.0)
    assert scheduler.get_last_lr() == [pytest.approx(0.05)]
    scheduler.step(4.0)  # the middle of the second half cosine, which goes from 2 to 6
    assert scheduler.get_last_lr() == [pytest.approx(0.05)]


def test_cyclic_lr_takes_a_height_of_ones_own_and_moves_the_first_beta():
    optimizer = optim.Adam([resilin.zeros(1).requires_grad_()])
    scheduler = lr_scheduler.CyclicLR(optimizer, 0.1, 0.3, step_size_up=1, scale_fn=lambda cycle: 1 / cycle)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    scheduler.step()
    assert (scheduler.get_last_lr(), optimizer.param_groups[0]["betas"][0]) == ([0.3], pytest.approx(0.8))
    scheduler.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [pytest.approx(0.2)]
    assert scheduler.state_dict()["_scale_fn_custom"] is None


def test_a_rate_given_as_a_tensor_stays_that_tensor():
    rate = resilin.tensor(1.0)
    optimizer = optim.SGD([resilin.zeros(1).requires_grad_()], lr=rate)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.5


@pytest.mark.parametrize(
    ("name", "options", "then"),
    [
        ("ExponentialLR", {"gamma": 0.5}, 0.125),
        ("LinearLR", {"total_iters": 9}, 0.27941176470588236),
        ("CosineAnnealingLR", {"T_max": 9}, 0.17602204776046182),
    ],
)
def test_a_resumed_scheduler_starts_at_the_current_rate(name, options, then):
    optimizer = make_optimizer(0.25)
    optimizer.param_groups[0]["initial_lr"] = 1.0
    scheduler = getattr(lr_scheduler, name)(optimizer, last_epoch=3, **options)
    assert scheduler.get_last_lr() == [0.25]
    scheduler.step()
    assert scheduler.get_last_lr() == [pytest.approx(then, rel=1e-12)]  # PyTorch's


def test_the_milestones_are_counted_in_the_state_as_in_pytorch(tmp_path):
    scheduler = lr_scheduler.MultiStepLR(make_optimizer(1.0), [4, 2, 4])
    assert scheduler.state_dict()["milestones"] == Counter({4: 2, 2: 1})
    resilin.save(scheduler.state_dict(), tmp_path / "state")
    other = lr_scheduler.MultiStepLR(make_optimizer(1.0), [1])
    other.load_state_dict(resilin.load(tmp_path / "state"))
    rates = []
    for _ in range(5):
        other.optimizer.step()
        other.step()
        rates.append(other.get_last_lr()[0])
    assert rates == pytest.approx([1.0, 0.1, 0.1, 0.001, 0.001])


def _plateau_with_a_new_group(min_lr):
    optimizer = optim.SGD([{"params": [resilin.zeros(1).requires_grad_()], "lr": lr} for lr in (0.1, 0.2)], lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, min_lr=min_lr)
    for _ in range(3):
        optimizer.step()
        scheduler.step(1)
    optimizer.add_param_group({"params": [resilin.zeros(1).requires_grad_()], "lr": 0.5})
    return optimizer, scheduler


@pytest.mark.parametrize(  # values of PyTorch
    ("min_lr", "rates"), [(0, (0.00625, 0.0125, 0.125)), (0.03, (0.03, 0.03, 0.125))]
)
def test_a_plateau_reduces_groups_that_were_added_later(min_lr, rates):
    optimizer, scheduler = _plateau_with_a_new_group(min_lr)
    for _ in range(2):
        scheduler.step(1)
    assert scheduler.get_last_lr() == pytest.approx(rates)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(rates)
    assert scheduler.min_lrs == [min_lr] * 3
    again = lr_scheduler.ReduceLROnPlateau(optimizer)
    again.load_state_dict(scheduler.state_dict())
    assert (again.default_min_lr, again.min_lrs) == (min_lr, [min_lr] * 3)


def test_a_plateau_with_a_list_of_bounds_asks_for_those_of_new_groups():
    _, scheduler = _plateau_with_a_new_group([0.03, 0.06])
    with pytest.raises(UsageError, match="3 parameter groups, `min_lrs` 2 values: append one"):
        scheduler.step(1)
    scheduler.min_lrs.append(0.4)
    scheduler.step(1)
    assert scheduler.get_last_lr() == pytest.approx([0.03, 0.06, 0.4])


def _two_parts(optimizer, last_epoch, of_parts=-1):
    how = {"last_epoch": of_parts}
    parts = [lr_scheduler.ConstantLR(optimizer, 0.1, 2, **how), lr_scheduler.ExponentialLR(optimizer, 0.9, **how)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2], last_epoch=last_epoch)


@pytest.mark.parametrize(  # values of PyTorch, which starts the parts anew and counts from last_epoch + 1
    ("last_epoch", "of_parts", "rates"),
    [
        (-1, -1, [0.01, 0.01, 0.1, 0.09, 0.081]),
        (0, -1, [0.01, 0.1, 0.09, 0.081, 0.0729]),
        (3, -1, [0.01, 0.009, 0.0081, 0.00729, 0.006561]),
        (3, 3, [0.1, 0.09, 0.081, 0.0729, 0.06561]),
    ],
)
def test_a_sequence_goes_on_from_the_last_epoch_that_it_is_given(last_epoch, of_parts, rates):
    group = {"params": [resilin.zeros(1).requires_grad_()], "lr": 0.1, "initial_lr": 0.1}
    optimizer = optim.SGD([group], lr=0.1)
    scheduler = _two_parts(optimizer, last_epoch, of_parts)
    seen = scheduler.get_last_lr()
    for _ in range(4):
        optimizer.step()
        scheduler.step()
        seen = [*seen, *scheduler.get_last_lr()]
    assert seen == pytest.approx(rates)
    assert scheduler.last_epoch == last_epoch + 5


def test_a_sequence_that_resumes_without_the_initial_rates_says_so():
    with pytest.raises(KeyError, match="ConstantLR: last_epoch=3 resumes, but param_groups"):
        _two_parts(make_optimizer(), 3, 3)


def test_an_explicit_epoch_is_warned_of():
    optimizer = make_optimizer()
    for scheduler, given in (
        (lr_scheduler.StepLR(optimizer, 2), (3,)),
        (lr_scheduler.ReduceLROnPlateau(optimizer), (1.0, 3)),
    ):
        with pytest.warns(UserWarning, match=r"The epoch parameter in `scheduler.step\(\)` was not necessary"):
            scheduler.step(*given)
        assert scheduler.last_epoch == 3


def test_a_sequence_takes_schedulers_only():
    with pytest.raises(TypeError, match="SequentialLR: scheduler 0 should be an LRScheduler, got int"):
        lr_scheduler.SequentialLR(make_optimizer(), [3], [])
