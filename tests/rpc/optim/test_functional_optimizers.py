"""Optimizers that get gradients as arguments: PyTorch's names, options, and what they leave alone."""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import resilin as torch
from resilin import nn, optim
from resilin.distributed import optim as dist_optim
from resilin.distributed.optim import as_functional_optim
from resilin.distributed.optim.utils import functional_optim_map, register_functional_optim
from resilin.errors import RpcTimeout
from resilin.rpc.optim.stand_ins import Turns
from resilin.testing.patience import PATIENCE_S

OF_PYTORCH = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "RMSprop", "Rprop", "SGD")
TRIES = 10


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(list(values)))


@pytest.mark.parametrize("name", OF_PYTORCH)
def test_they_have_pytorchs_places(name: str) -> None:
    kind = functional_optim_map[getattr(optim, name)]
    place = importlib.import_module(f"resilin.distributed.optim.functional_{name.lower()}")
    assert getattr(place, f"_Functional{name}") is kind is getattr(dist_optim, f"_Functional{name}")


@pytest.mark.parametrize("kind", functional_optim_map, ids=lambda kind: kind.__name__)
def test_a_step_is_that_of_the_optimizer(kind: Any) -> None:
    ours, theirs = [parameter(1.0, -2.0), parameter(3.0)], [parameter(1.0, -2.0), parameter(3.0)]
    functional, plain = functional_optim_map[kind](ours, lr=0.1), kind(theirs, lr=0.1)
    gradients = [[torch.tensor([0.5, -1.0]), None], [torch.tensor([0.25, 2.0]), torch.tensor([1.0])]]
    for both in gradients:
        functional.step(both)
        for p, gradient in zip(theirs, both, strict=True):
            p.grad = gradient
        plain.step()
        for one, other in zip(ours, theirs, strict=True):
            assert np.array_equal(one.detach().numpy(), other.detach().numpy())
    assert [p.grad for p in ours] == [None, None]
    kept = {p: functional.state[p].keys() for p in ours if p in functional.state}
    assert kept == {one: plain.state[other].keys() for one, other in zip(ours, theirs, strict=True) if one in kept}


def test_gradients_must_be_as_many_as_parameters():
    functional = dist_optim._FunctionalSGD([parameter(1.0)], 0.1)
    with pytest.raises(ValueError, match=r"does not equal to the size of the parameters!Params length: 1\. Gradients "):
        functional.step([])
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        dist_optim._FunctionalSGD([])


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_without_parameters_each_is_given_with_its_gradient(kind: Any) -> None:
    functional = as_functional_optim(kind, lr=0.1)
    ours, theirs = [parameter(1.0), parameter(2.0)], [parameter(1.0), parameter(2.0)]
    plain = kind(theirs, lr=0.1)
    for number in range(2):
        for one, other in zip(ours, theirs, strict=True):
            functional.step_param(one, torch.tensor([number + 0.5]))
            functional.step_param(one, None)
            other.grad = torch.tensor([number + 0.5])
        plain.step()
    assert [p.tolist() for p in ours] == [p.tolist() for p in theirs]
    if kind is not optim.SGD:
        assert all(int(functional.state[p]["step"]) == 2 for p in ours)


def test_one_of_its_parameters_may_be_stepped_alone():
    ours = [parameter(1.0), parameter(2.0)]
    functional = dist_optim._FunctionalSGD(ours, lr=0.5, momentum=0.5)
    assert functional.param_group["params"] == ours
    assert (functional.defaults["lr"], functional.defaults["momentum"]) == (0.5, 0.5)
    functional.step_param(ours[1], torch.tensor([1.0]))
    functional.step([None, torch.tensor([1.0])])
    assert [p.tolist() for p in ours] == [[1.0], [0.75]]


def test_what_has_no_functional_form_is_named():
    with pytest.raises(ValueError, match=r"Optimizer .*LBFGS.* does not have a functional counterpart!"):
        as_functional_optim(optim.LBFGS)
    register_functional_optim(optim.SGD, None)
    assert functional_optim_map[optim.SGD] is dist_optim._FunctionalSGD


def test_a_parameter_that_got_other_memory_is_stepped_where_it_is():
    ours = parameter(1.0)
    functional = dist_optim._FunctionalSGD([ours], lr=0.5)
    ours.data = torch.tensor([10.0])
    functional.step([torch.tensor([1.0])])
    assert ours.tolist() == [9.5]


def test_a_backward_over_old_values_is_refused():
    ours = parameter(2.0)
    result = (ours * ours).sum()
    dist_optim._FunctionalSGD([ours], lr=0.5).step([torch.tensor([1.0])])
    with pytest.raises(RuntimeError, match="modified"):
        result.backward()


@pytest.mark.parametrize("kind", functional_optim_map, ids=lambda kind: kind.__name__)
def test_a_step_does_not_hold_the_interpreter_lock(kind: Any) -> None:
    """In the middle of a step, which is nearly all native code, another thread runs Python."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    size = 1 << 23
    ours, gradient = nn.Parameter(torch.zeros(size)), torch.ones(size)
    functional = functional_optim_map[kind]([ours])
    functional.step([gradient])  # which makes its states
    try:
        assert any(_another_runs_amid(lambda: functional.step([gradient])) for _ in range(TRIES))
    finally:
        torch.set_num_threads(threads)


def _another_runs_amid(work: Any) -> bool:
    """Whether a thread that does little else than look at the clock has done so in the middle of `work`."""
    done, seen = threading.Event(), [0.0]

    def look() -> None:
        while not done.is_set():
            seen.append(time.perf_counter())
            time.sleep(0)

    thread, interval = threading.Thread(target=look), sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE_S)  # the lock is given up where `work` does so, not between the looks at the clock
    try:
        thread.start()
        start = time.perf_counter()
        work()
        took = time.perf_counter() - start
    finally:
        done.set()
        sys.setswitchinterval(interval)
        thread.join()
    return any(0.2 * took < at - start < 0.8 * took for at in seen)


def test_a_held_lock_would_be_seen():
    usleep = ctypes.PyDLL(None).usleep
    assert not any(_another_runs_amid(lambda: usleep(20_000)) for _ in range(TRIES))


def test_steps_over_the_same_parameters_come_one_after_the_other():
    turns, one, other = Turns(), parameter(1.0), parameter(2.0)
    with turns.over([one], 1.0):
        with turns.over([other], 0.0):
            pass
        with pytest.raises(RpcTimeout, match="another step over the same parameters has not ended within"):
            turns.over([other, one], 0.0).__enter__()
    with turns.over([other, one], 0.0):
        pass
