"""A DistributedOptimizer steps parameters where they lie, as an optimizer of one process would."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin import nn, optim
from resilin.distributed.nn import RemoteModule
from resilin.distributed.optim import DistributedOptimizer
from resilin.distributed.optim.utils import functional_optim_map, register_functional_optim
from resilin.rpc.optim import at_owner


class OwnOptimizer(optim.Optimizer):
    """A program's own: moves by the sign of the gradient."""

    def __init__(self, params: Any, lr: float = 0.5) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    with torch.no_grad():
                        p.sub_(p.grad.sign() * group["lr"])


class OwnSGD(optim.SGD):
    """A subclass may do anything: it is not stepped as SGD is."""


class FailingOptimizer(optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:
        raise ValueError("Error running optimizer.")


class FailsToBegin(optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        raise ValueError("Error creating optimizer.")


class Halving:
    """A functional optimizer of a program's own."""

    def __init__(self, params: Any, by: float = 2.0) -> None:
        self.params, self.by = params, by

    def step(self, gradients: Any) -> None:
        with torch.no_grad():
            for p, gradient in zip(self.params, gradients, strict=True):
                if gradient is not None:
                    p.div_(self.by)


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(list(values)))


def grad_of(rref: Any) -> Any:
    return rref.local_value().grad


def version_of(rref: Any) -> int:
    return rref.local_value()._version


def set_grad(rref: Any, value: float) -> None:
    p = rref.local_value()
    p.grad = torch.full_like(p.detach(), value)


def step(distributed: DistributedOptimizer, rrefs: list[Any], values: list[Any]) -> None:
    """Step by gradients whose elements are all the same; None: there is none."""
    with dist_autograd.context() as context_id:
        roots = [(rref.to_here() * value).sum() for rref, value in zip(rrefs, values, strict=True) if value is not None]
        dist_autograd.backward(context_id, roots)
        distributed.step(context_id)


def remote_parameters(me: Me) -> list[Any]:
    return [rpc.remote(me.name(rank), parameter, (1.0 + rank, 2.0)) for rank in range(me.world_size)]


def values_of(rrefs: list[Any]) -> list[list[float]]:
    return [rref.to_here().tolist() for rref in rrefs]


@on_workers(3)
def test_parameters_of_several_workers_are_stepped_as_those_of_one(me: Me) -> None:
    if me.rank:
        return
    for kind, options in (
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (optim.Adam, {"lr": 0.1, "amsgrad": True}),
        (optim.AdamW, {"lr": 0.1}),
        (optim.Adagrad, {}),
        (optim.Adadelta, {}),
        (optim.Adamax, {}),
        (optim.ASGD, {}),
        (optim.Lion, {}),
        (optim.NAdam, {}),
        (optim.RAdam, {}),
        (optim.RMSprop, {"momentum": 0.5, "centered": True}),
        (optim.Rprop, {}),
        (optim.Adafactor, {}),
        (OwnOptimizer, {"lr": 0.25}),
        (OwnSGD, {"lr": 0.25}),
    ):
        found = remote_parameters(me)
        distributed = DistributedOptimizer(kind, found, **options)
        here = [parameter(1.0 + rank, 2.0) for rank in range(3)]
        local = kind(here, **options)
        assert distributed.is_functional_optim == (kind in functional_optim_map)
        assert {each.owner_name() for each in distributed.remote_optimizers} == {"worker0", "worker1", "worker2"}
        for turn in range(3):
            values = [0.5, -0.25, 0.125 + turn]
            for p, value in zip(here, values, strict=True):
                p.grad = torch.full_like(p.detach(), value)
            step(distributed, found, values)
            local.step()
            assert values_of(found) == [p.tolist() for p in here], (kind, turn)


@on_workers(2)
def test_gradients_of_a_context_are_seen_by_nobody_else(me: Me) -> None:
    if me.rank == 0:
        for kind in (optim.SGD, OwnSGD):
            found = rpc.remote("worker1", parameter, (1.0,))
            rpc.rpc_sync("worker1", set_grad, (found, 3.0))
            before = rpc.rpc_sync("worker1", version_of, (found,))
            distributed = DistributedOptimizer(kind, [found], lr=0.5)
            step(distributed, [found], [1.0])
            assert found.to_here().tolist() == [0.5]
            assert rpc.rpc_sync("worker1", grad_of, (found,)).tolist() == [3.0]
            assert rpc.rpc_sync("worker1", version_of, (found,)) > before


@on_workers(2)
def test_a_parameter_without_a_gradient_in_the_context_stays(me: Me) -> None:
    if me.rank == 0:
        for kind in (optim.SGD, OwnSGD):
            found = [rpc.remote("worker1", parameter, (1.0,)) for _ in range(2)]
            rpc.rpc_sync("worker1", set_grad, (found[1], 3.0))
            distributed = DistributedOptimizer(kind, found, lr=0.5)
            step(distributed, found, [1.0, None])
            assert values_of(found) == [[0.5], [1.0]]


@on_workers(2)
def test_the_parameters_of_a_remote_module_are_stepped(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", nn.Linear, (2, 1))
        x = torch.ones(1, 2)
        before = float(module(x))
        found = module.remote_parameters()
        step(DistributedOptimizer(optim.SGD, found, lr=1.0), found, [1.0, 1.0])
        assert float(module(x)) == pytest.approx(before - 3.0)


@on_workers(2)
def test_without_a_rate_sgd_has_that_of_pytorchs_functional_one(me: Me) -> None:
    if me.rank == 0:
        found = rpc.remote("worker1", parameter, (1.0,))
        step(DistributedOptimizer(optim.SGD, [found]), [found], [1.0])
        assert float(found.to_here()) == pytest.approx(0.99)
        step(DistributedOptimizer(optim.SGD, [found], 0.5), [found], [1.0])
        assert float(found.to_here()) == pytest.approx(0.49)


@on_workers(2)
def test_what_is_wrong_with_the_parameters_is_said_at_once(me: Me) -> None:
    if me.rank == 0:
        with pytest.raises(TypeError, match="optimizer_class must be a class of optimizers, got 'SGD'"):
            DistributedOptimizer("SGD", [rpc.RRef(nn.Parameter(torch.ones(1)))])
        rref = rpc.RRef(parameter(1.0))
        with pytest.raises(TypeError, match="must be a list of RRefs, got Parameter at place 1: RRef\\(parameter\\)"):
            DistributedOptimizer(optim.SGD, [rref, parameter(1.0)], lr=0.1)
        for wrong in (rref, 3):
            with pytest.raises(TypeError, match="params_rref must be a list of RRefs, got"):
                DistributedOptimizer(optim.SGD, wrong, lr=0.1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="got an empty parameter list"):
            DistributedOptimizer(optim.SGD, [], lr=0.1)
        with pytest.raises(TypeError, match="an optimizer updates tensors, got int at place 0"):
            DistributedOptimizer(optim.SGD, [rpc.RRef(3)], lr=0.1)
        with pytest.raises(ValueError, match="leaf tensors only"):
            DistributedOptimizer(OwnSGD, [rpc.RRef(parameter(1.0) * 2)], lr=0.1)
        with pytest.raises(ValueError, match="lr must not be negative"):
            DistributedOptimizer(optim.SGD, [rref], lr=-1.0)
        with pytest.raises(TypeError, match="unexpected keyword argument 'momentun'"):
            DistributedOptimizer(optim.SGD, [rref], lr=1.0, momentun=0.1)


@on_workers(2)
def test_an_owners_error_reaches_the_caller(me: Me) -> None:
    if me.rank == 0:
        found = [rpc.remote("worker1", parameter, (1.0,)), rpc.RRef(parameter(1.0))]
        with pytest.raises(Exception, match=r"Error running optimizer\."):
            step(DistributedOptimizer(FailingOptimizer, found), found, [1.0, 1.0])
        with pytest.raises(Exception, match=r"Error creating optimizer\."):
            DistributedOptimizer(FailsToBegin, found)
        with pytest.raises(RuntimeError, match="Could not find autograd context with id: 99"):
            DistributedOptimizer(optim.SGD, found).step(99)


@on_workers(2)
def test_an_optimizer_without_a_kernel_says_once_that_it_holds_the_lock(me: Me) -> None:
    if me.rank == 0:
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        at_owner._said.clear()
        at_owner._LOG.addHandler(handler)
        try:
            for kind in (OwnOptimizer, OwnOptimizer, optim.SGD, optim.Adafactor):
                DistributedOptimizer(kind, [rpc.RRef(parameter(1.0))])
        finally:
            at_owner._LOG.removeHandler(handler)
        assert [text for text in said if "hold the interpreter lock" in text] == said
        assert len(said) == 2


@on_workers(2)
def test_a_programs_own_functional_optimizer_is_registered_by_its_key(me: Me) -> None:
    if me.rank == 0:
        register_functional_optim("halve", Halving)
        register_functional_optim("halve", FailingOptimizer)
        found = rpc.remote("worker1", parameter, (1.0,))
        distributed = DistributedOptimizer("halve", [found], by=4.0)
        assert distributed.is_functional_optim
        step(distributed, [found], [1.0])
        assert found.to_here().tolist() == [0.25]
        del functional_optim_map["halve"]
