"""Train what lies at several workers: distributed autograd and optimizers together, beside one process."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin import nn, optim
from resilin.distributed.nn import RemoteModule
from resilin.distributed.optim import DistributedOptimizer
from resilin.testing.patience import PATIENCE_S

STEPS = 3
CLIENTS = 4


class Layer(nn.Module):
    """A layer whose weights are the same wherever it is made."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.rand(3, 3, generator=generator))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Any) -> Any:
        return torch.tanh(x @ self.weight)


def weight(rref: Any) -> Any:
    return rref.local_value().weight.detach().clone()


def grad_of_weight(rref: Any) -> Any:
    return rref.local_value().weight.grad


def train_by(optimizer: Any, modules: list[Any], x: Any) -> None:
    for _ in range(STEPS):
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [modules[1](modules[0](x)).sum()])
            optimizer.step(context_id)


@on_workers(3)
def test_remote_modules_are_trained_to_the_bits_of_one_process(me: Me) -> None:
    if me.rank:
        return
    x = torch.rand(4, 3)
    for kind, options in ((optim.SGD, {"lr": 0.1, "momentum": 0.5}), (optim.Adam, {"lr": 0.1}), (optim.Adafactor, {})):
        modules = [RemoteModule("worker1", Layer, (1,)), RemoteModule("worker2/cpu", Layer, (2,))]
        parameters = [rref for module in modules for rref in module.remote_parameters()]
        train_by(DistributedOptimizer(kind, parameters, **options), modules, x)
        here = nn.Sequential(Layer(1), Layer(2))
        local = kind(here.parameters(), **options)
        for _ in range(STEPS):
            local.zero_grad()
            here(x).sum().backward()
            local.step()
        for module, layer in zip(modules, here, strict=True):
            rref = module.get_module_rref()
            assert torch.equal(rpc.rpc_sync(rref.owner(), weight, (rref,)), layer.weight.detach()), kind
            assert rpc.rpc_sync(rref.owner(), grad_of_weight, (rref,)) is None


@on_workers(2)
def test_forward_and_forward_async_are_recorded_and_inputs_get_gradients(me: Me) -> None:
    if me.rank == 0:
        module, x = RemoteModule("worker1", Layer, (1,)), torch.rand(1, 3, requires_grad=True)
        layer, own = Layer(1), x.detach().clone().requires_grad_()
        layer(own).sum().backward()
        for way in (module, module.forward, lambda x: module.forward_async(x).wait()):
            with dist_autograd.context() as context_id:
                dist_autograd.backward(context_id, [way(x).sum()])
                assert torch.equal(dist_autograd.get_gradients(context_id)[x], own.grad)
        assert x.grad is None


@on_workers(2)
def test_steps_of_several_clients_over_the_same_parameters_all_count(me: Me) -> None:
    if me.rank == 0:
        module, x = RemoteModule("worker1", Layer, (1,)), torch.rand(4, 3)
        together, failed = threading.Barrier(CLIENTS), []

        def train() -> None:
            try:
                optimizer = DistributedOptimizer(optim.SGD, module.remote_parameters(), lr=0.1)
                with dist_autograd.context() as context_id:
                    dist_autograd.backward(context_id, [module(x).sum()])
                    together.wait(PATIENCE_S)
                    optimizer.step(context_id)
            except Exception as error:  # noqa: BLE001 - of a thread: compared below
                failed.append(error)
                together.abort()

        threads = [threading.Thread(target=train) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        layer = Layer(1)
        layer(x).sum().backward()
        local = optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(CLIENTS):
            local.step()
        rref = module.get_module_rref()
        assert torch.equal(rpc.rpc_sync("worker1", weight, (rref,)), layer.weight.detach())


@on_workers(2)
def test_a_backward_through_parameters_that_were_stepped_meanwhile_is_refused(me: Me) -> None:
    if me.rank == 0:
        modules = [RemoteModule("worker1", Layer, (seed,)) for seed in (1, 2)]
        parameters = [rref for module in modules for rref in module.remote_parameters()]
        optimizer = DistributedOptimizer(optim.SGD, parameters, lr=0.1)
        with dist_autograd.context() as context_id:
            losses = [modules[1](modules[0](torch.rand(1, 3))).sum() for _ in range(2)]
            dist_autograd.backward(context_id, losses[:1])
            optimizer.step(context_id)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                dist_autograd.backward(context_id, losses[1:])


@on_workers(2)
def test_a_context_that_has_ended_or_never_was_is_an_error(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", Layer, (1,))
        optimizer = DistributedOptimizer(optim.SGD, module.remote_parameters(), lr=0.1)
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [module(torch.rand(1, 3)).sum()])
            optimizer.step(context_id)
            optimizer.step(context_id)  # as often as one likes
        with pytest.raises(RuntimeError, match="context"):
            optimizer.step(context_id)
        with pytest.raises(RuntimeError, match="context"):
            optimizer.step(12345)


@on_workers(3)
def test_an_owner_that_took_no_part_in_the_context_is_left_as_it_is(me: Me) -> None:
    if me.rank == 0:
        used, other = RemoteModule("worker1", Layer, (1,)), RemoteModule("worker2", Layer, (2,))
        optimizer = DistributedOptimizer(optim.SGD, [*used.remote_parameters(), *other.remote_parameters()], lr=0.1)
        rref = other.get_module_rref()
        before = rpc.rpc_sync("worker2", weight, (rref,))
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [used(torch.rand(1, 3)).sum()])
            optimizer.step(context_id)
        assert torch.equal(rpc.rpc_sync("worker2", weight, (rref,)), before)
