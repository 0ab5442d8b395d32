"""Gradients and steps of optimizers are those of one process over every network transport, also between devices."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

from rpc_graphs import fresh, grads, local_grads, multiply
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin import nn, optim
from resilin.distributed.nn import RemoteModule
from resilin.distributed.optim import DistributedOptimizer
from resilin.testing.job_secret import SECRET

SIDE = 200  # 160 kB a matrix: long messages, over several lanes
STEPS = 3
ZEROMQ = {"transports": ["zeromq"], "channels": ["inline"], "num_lanes": 3}
GRPC = {"transports": ["grpc"], "channels": ["inline"]}
DEVICES = {"channels": ["inline", "striped", "staged"]}


class Layer(nn.Module):
    """A layer whose weights are the same wherever it is made."""

    def __init__(self, seed: int, device: str = "cpu") -> None:
        super().__init__()
        made = torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(seed)) / SIDE
        self.weight = nn.Parameter(made.to(device))

    def forward(self, x: Any) -> Any:
        return torch.tanh(x @ self.weight)


def weight(rref: Any) -> Any:
    return rref.local_value().weight.detach().cpu()


def back_and_forth(to: str, a: Any, b: Any) -> Any:
    """Multiply at another worker than the caller, which this one calls in turn."""
    return rpc.rpc_sync(to, multiply, args=(a, b)) + a


def used_transports() -> list[str]:
    return [each.name for each in rpc._get_current_rpc_agent()._transports]


def check_gradients(me: Me, transport: str) -> None:
    """Calls within calls of large tensors, by all workers at once, and sums of what several calls give."""
    assert used_transports() == [transport]
    a, b = fresh(SIDE, SIDE), fresh(SIDE, SIDE)
    third = me.name(me.rank + 2)

    def loss(product: Any) -> Any:
        return (product @ b).sum() + torch.tanh(product).sum()

    expected = local_grads(loss(a * b + a), a, b)
    for _ in range(STEPS):
        with dist_autograd.context() as context_id:
            product = rpc.rpc_sync(me.next, back_and_forth, args=(third, a, b))
            dist_autograd.backward(context_id, [loss(product)])
            assert grads(context_id, a, b) == expected
    assert a.grad is None


def check_training(me: Me, transport: str, device: str = "cpu") -> None:
    """Modules of two owners are trained to the bits of one process."""
    assert used_transports() == [transport]
    if me.rank:
        return
    x = torch.rand(4, SIDE)
    for kind, options in ((optim.SGD, {"lr": 0.1, "momentum": 0.5}), (optim.Adam, {"lr": 0.01})):
        modules = [RemoteModule(f"worker{owner}/{device}", Layer, (owner,)) for owner in (1, 2)]
        parameters = [rref for module in modules for rref in module.remote_parameters()]
        optimizer = DistributedOptimizer(kind, parameters, **options)
        here = nn.Sequential(Layer(1), Layer(2)).to(device)
        local = kind(here.parameters(), **options)
        for _ in range(STEPS):
            with dist_autograd.context() as context_id:
                dist_autograd.backward(context_id, [modules[1](modules[0](x)).sum()])
                optimizer.step(context_id)
            local.zero_grad()
            here(x.to(device)).sum().backward()
            local.step()
        for module, layer in zip(modules, here, strict=True):
            rref = module.get_module_rref()
            assert torch.equal(rpc.rpc_sync(rref.owner(), weight, (rref,)), layer.weight.detach().cpu()), kind


def between_devices(me: Me, options: dict[str, Any]) -> None:
    """Every worker's sim:0 is the others' sim:1: calls, gradients and the modules that are trained are there."""
    maps = {me.name(me.rank + more): {"sim:0": "sim:1"} for more in (1, 2)}
    me.init("devices", device_maps=maps, **{**options, **DEVICES})
    a, b = (fresh(SIDE, SIDE).detach().to("sim:0").requires_grad_() for _ in range(2))
    expected = local_grads((torch.tanh(a * b) @ a).sum(), a, b)
    with dist_autograd.context() as context_id:
        product, where = rpc.rpc_sync(me.next, multiply_there, args=(a, b))
        assert (where, str(product.device)) == ("sim:1", "sim:0")
        dist_autograd.backward(context_id, [(torch.tanh(product) @ a).sum()])
        assert {str(grad.device) for grad in dist_autograd.get_gradients(context_id).values()} == {"sim:0"}
        assert grads(context_id, a, b) == expected
    me.meet("gradients")
    check_training(me, options["transports"][0], "sim:1")
    rpc.shutdown()


def multiply_there(a: Any, b: Any) -> tuple[Any, str]:
    return a * b, str(a.device)


@on_workers(3, **ZEROMQ)
def test_gradients_over_lanes_of_zeromq(me: Me) -> None:
    check_gradients(me, "zeromq")


@on_workers(3, **GRPC)
def test_gradients_over_grpc(me: Me) -> None:
    check_gradients(me, "grpc")


@on_workers(3, **ZEROMQ)
def test_training_over_lanes_of_zeromq(me: Me) -> None:
    check_training(me, "zeromq")


@on_workers(3, **GRPC)
def test_training_over_grpc(me: Me) -> None:
    check_training(me, "grpc")


@on_workers(3, setup=False)
def test_gradients_and_training_that_are_encrypted(me: Me) -> None:
    with mock.patch.dict(os.environ, RESILIN_SECRET=SECRET):
        for options in (ZEROMQ, GRPC):
            (transport,) = options["transports"]
            me.init(transport, encrypt=True, **options)
            check_gradients(me, transport)
            check_training(me, transport)
            rpc.shutdown()


@on_workers(3, setup=False)
def test_gradients_and_training_between_devices_over_zeromq(me: Me) -> None:
    between_devices(me, ZEROMQ)


@on_workers(3, setup=False)
def test_gradients_and_training_between_devices_over_grpc(me: Me) -> None:
    between_devices(me, GRPC)
