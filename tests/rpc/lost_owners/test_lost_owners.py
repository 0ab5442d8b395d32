"""The owner of a module, of parameters or of a value dies: what raises, and what is made again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rpc_workers import Me, on_workers, spawned, until

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin import nn, optim
from resilin.distributed.nn import RemoteModule
from resilin.distributed.optim import DistributedOptimizer
from resilin.errors import OwnerLost, PeerLost

pytestmark = pytest.mark.multiproc

_held: list[Any] = []


class Counter:
    """A value that remembers what was done to it."""

    def __init__(self, first: int, made_by: str = "") -> None:
        self.number, self.made_by = first, made_by

    def add(self, by: int) -> int:
        self.number += by
        return self.number

    def where(self) -> int:
        return os.getpid()


def hold(rref: Any) -> None:
    _held.append(rref)


def use_held() -> int:
    return int(_held[-1].to_here().number)


def number_of(rref: Any) -> int:
    return int(rref.to_here().number)


def die(name: str) -> None:
    """Have a worker die amid a call; return when that has failed."""
    with pytest.raises(PeerLost):
        rpc.rpc_sync(name, os._exit, (0,))


def step_in_context(optimizer: Any) -> None:
    with dist_autograd.context() as context_id:
        optimizer.step(context_id)


def is_gone(rref: Any) -> bool:
    return rref._state.error is not None


# --- modules and parameters ---


def modules(me: Me) -> None:
    if me.rank == 2:  # comes in the place of worker 1
        until((Path(me.folder) / "died").exists)
        rpc.init_rpc("worker1", rank=1, rpc_backend_options=me.made_options())
        (Path(me.folder) / "came").touch()
        until((Path(me.folder) / "over").exists)
        rpc.shutdown(graceful=False)
        return
    me.init(world_size=None)
    (Path(me.folder) / f"begun{me.rank}").touch()
    until(lambda: all((Path(me.folder) / f"begun{rank}").exists() for rank in range(2)))
    if me.rank == 1:
        until((Path(me.folder) / "over").exists)  # it dies before
        return
    module, x = RemoteModule("worker1", nn.Linear, (2, 2)), torch.ones(1, 2)
    module(x)
    optimizer = DistributedOptimizer(optim.SGD, [*module.remote_parameters(), rpc.RRef(nn.Parameter(x))], lr=0.5)
    die("worker1")
    (Path(me.folder) / "died").touch()
    until((Path(me.folder) / "came").exists)
    until(lambda: is_gone(module.module_rref))
    for use in (
        lambda: module(x),
        lambda: module.forward_async(x).wait(),
        module.remote_parameters,
        module.eval,
        lambda: step_in_context(optimizer),
    ):
        with pytest.raises(PeerLost, match=r"worker1|worker 1"):
            use()
    assert RemoteModule("worker1", nn.Linear, (2, 2))(x).shape == (1, 2)
    (Path(me.folder) / "over").touch()
    rpc.shutdown(graceful=False)


def test_modules_and_parameters_of_a_dead_owner_raise_and_new_ones_are_made_at_its_replacement(tmp_path: Path) -> None:
    with spawned(modules, 3, tmp_path) as code:
        assert [code(rank) for rank in range(3)] == [0, 0, 0]


class DiesAmid(optim.SGD):
    """Worker 1 dies amid a step."""

    def step(self, closure: Any = None) -> Any:
        if rpc.get_worker_info().id == 1:
            os._exit(0)
        return super().step(closure)


def a_step_that_kills(me: Me) -> None:
    me.init(world_size=None)
    me.meet("begun")
    if me.rank:
        until((Path(me.folder) / "over").exists)
        rpc.shutdown(graceful=False)
        return
    ones = nn.Parameter(torch.ones(1, 2))
    modules = [RemoteModule(f"worker{rank}", nn.Linear, (2, 2)) for rank in (1, 2)]
    found = [rref for module in modules for rref in module.remote_parameters()]
    found.append(rpc.RRef(ones))
    dying, other = DistributedOptimizer(DiesAmid, found, lr=0.5), DistributedOptimizer(optim.SGD, found, lr=0.5)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [(modules[0](ones) + modules[1](ones)).sum()])
        bias = found[3].to_here().detach()
        with pytest.raises(PeerLost, match=r"worker1"):
            dying.step(context_id)
        moved = ones.detach().clone()
        assert not torch.equal(moved, torch.ones(1, 2))
        assert torch.equal(found[3].to_here().detach(), bias - 0.5)
        until(lambda: is_gone(other.remote_optimizers[0]))
        with pytest.raises(OwnerLost, match=r"worker1"):
            other.step(context_id)  # of whom it is known before: nobody steps
        assert torch.equal(ones.detach(), moved)
        assert torch.equal(found[3].to_here().detach(), bias - 0.5)
    (Path(me.folder) / "over").touch()
    rpc.shutdown(graceful=False)


def test_a_worker_that_dies_amid_a_step_is_named_and_the_others_step_all_the_same(tmp_path: Path) -> None:
    with spawned(a_step_that_kills, 3, tmp_path) as code:
        assert [code(rank) for rank in range(3)] == [0, 0, 0]


# --- values that are made again ---


def made_again_elsewhere(me: Me) -> None:
    me.init(world_size=None)
    me.meet("begun")
    if me.rank == 0:
        kept = rpc.remote("worker3", Counter, (5,), {"made_by": "me"}, recreate=True)
        plain = rpc.remote("worker3", Counter, (5,))
        assert kept.rpc_sync().add(2) == 7
        assert kept.owner_name() == "worker3"
        rpc.rpc_sync("worker2", hold, (kept,))
        assert rpc.rpc_sync("worker2", use_held) == 7
        die("worker3")
        value = kept.to_here()  # without what was done to it
        assert (value.number, value.made_by) == (5, "me")
        assert kept.owner_name() == "worker1"  # the lowest id of the others
        with pytest.raises(OwnerLost):
            plain.to_here()
        with pytest.raises(OwnerLost):
            rpc.rpc_sync("worker2", use_held)
        assert kept.rpc_sync().add(1) == 6
        assert rpc.rpc_sync("worker2", number_of, (kept,)) == 6
        die("worker1")
        until(lambda: is_gone(kept))
        assert rpc.rpc_sync("worker2", number_of, (kept,)) == 5  # passing it on is a use
        assert kept.owner_name() == "worker2"
        die("worker2")
        until(lambda: is_gone(kept))
        assert kept.rpc_sync().where() == os.getpid()
        assert kept.is_owner()
        rpc.shutdown(graceful=False)
    else:
        until((Path(me.folder) / "over").exists)  # it dies before


def test_a_value_is_made_again_at_the_survivor_of_the_lowest_id(tmp_path: Path) -> None:
    with spawned(made_again_elsewhere, 4, tmp_path) as code:
        assert code(0) == 0


def made_again_at_the_replacement(me: Me) -> None:
    if me.rank == 2:  # comes in the place of worker 1
        until((Path(me.folder) / "died").exists)
        rpc.init_rpc("worker1", rank=1, rpc_backend_options=me.made_options())
        (Path(me.folder) / "came").touch()
        until((Path(me.folder) / "over").exists)
        rpc.shutdown(graceful=False)
        return
    me.init(world_size=None)
    (Path(me.folder) / f"begun{me.rank}").touch()
    until(lambda: all((Path(me.folder) / f"begun{rank}").exists() for rank in range(2)))
    if me.rank == 1:
        until((Path(me.folder) / "over").exists)  # it dies before
        return
    kept = [rpc.remote("worker1", Counter, (number,), recreate=True) for number in range(4)]
    first = kept[0].rpc_sync().where()
    die("worker1")
    (Path(me.folder) / "died").touch()
    until((Path(me.folder) / "came").exists)
    until(lambda: is_gone(kept[0]))
    assert kept[0].to_here().number == 0
    assert kept[1].rpc_sync().add(1) == 2
    assert kept[2].rpc_async().add(1).wait() == 3
    assert kept[3].remote().add(1).to_here() == 4
    assert {each.owner_name() for each in kept} == {"worker1"}
    assert kept[0].rpc_sync().where() not in (first, os.getpid())
    (Path(me.folder) / "over").touch()
    rpc.shutdown(graceful=False)


def test_a_value_is_made_again_at_the_process_that_has_come_under_its_owners_name(tmp_path: Path) -> None:
    with spawned(made_again_at_the_replacement, 3, tmp_path) as code:
        assert [code(rank) for rank in range(3)] == [0, 0, 0]


class Drops(nn.Module):
    """Says in which mode and in which process it is."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Any) -> Any:
        return x * self.factor, self.training, os.getpid()


def forward_of(module: Any, x: Any) -> Any:
    return (*module(x), module.on)


def module_made_again(me: Me) -> None:
    me.init(world_size=None)
    me.meet("begun")
    if me.rank:
        until((Path(me.folder) / "over").exists)  # it dies before
        return
    x = torch.ones(())
    module = RemoteModule("worker3/cpu", Drops, (3.0,), recreate=True)
    shared = RemoteModule.init_from_module_rref("worker3", module.get_module_rref())
    plain = RemoteModule("worker3", Drops, (3.0,))
    old = DistributedOptimizer(optim.SGD, module.remote_parameters(), lr=1.0)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [module(x)[0]])
        old.step(context_id)
    assert module(x)[:2] == (2.0, True)
    module.eval()
    die("worker3")
    until(lambda: is_gone(module.module_rref) and is_gone(plain.module_rref) and is_gone(old.remote_optimizers[0]))
    y, training, at = module(x)  # without what it had learned, and in the mode it was in
    assert (y, training, module.on, module.training) == (3.0, False, "worker1", False)
    assert at == rpc.rpc_sync("worker1", os.getpid)
    assert shared.forward_async(x).wait() == (3.0, False, at)
    assert shared.on == "worker1"
    for use in (lambda: plain(x), lambda: step_in_context(old)):
        with pytest.raises(OwnerLost, match="worker3"):
            use()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [module(x)[0]])
        DistributedOptimizer(optim.SGD, module.remote_parameters(), lr=1.0).step(context_id)
    assert module(x)[0] == 2.0
    assert rpc.rpc_sync("worker2", forward_of, (module, x)) == (2.0, False, at, "worker1")
    die("worker1")
    until(lambda: is_gone(module.module_rref))
    assert rpc.rpc_sync("worker2", forward_of, (module, x))[0::3] == (3.0, "worker2")  # passing it on is a use
    assert [float(each.to_here()) for each in module.remote_parameters()] == [3.0]
    die("worker2")
    until(lambda: is_gone(module.module_rref))
    assert module.train() is module
    assert module(x) == (3.0, True, os.getpid())
    assert module.on == "worker0"
    rpc.shutdown(graceful=False)


def test_a_module_that_is_to_be_made_again_goes_on_at_a_survivor_in_its_mode(tmp_path: Path) -> None:
    with spawned(module_made_again, 4, tmp_path) as code:
        assert code(0) == 0


@on_workers(2)
def test_as_long_as_the_owner_lives_nothing_is_made_again(me: Me) -> None:
    if me.rank == 0:
        kept = rpc.remote("worker1", Counter, (1,), recreate=True)
        assert [kept.rpc_sync().add(1) for _ in range(3)] == [2, 3, 4]
        assert kept.to_here().number == 4
        with pytest.raises(ValueError, match="invalid literal"):
            rpc.remote("worker1", int, ("x",), recreate=True).to_here()
        assert rpc.remote("worker0", Counter, (1,), recreate=True).to_here().number == 1
