"""A RemoteModule is a module whose forward runs elsewhere."""

import copy
import pickle
from typing import Any

import pytest
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed.nn as dist_nn
import resilin.distributed.rpc as rpc
from resilin import jit, nn
from resilin.distributed.nn import RemoteModule
from resilin.distributed.nn.api.remote_module import RemoteModule as SameModule
from resilin.distributed.nn.api.remote_module import _RemoteModule
from resilin.errors import UsageError
from resilin.rpc.nn.api.refused import REFUSED


class Scaled(nn.Module):
    def __init__(self, scale: float, bias: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([float(scale)]))
        self.inner = nn.Linear(2, 2)
        self.bias = bias

    def forward(self, x: Any, number: int = 1, word: str = "default") -> Any:
        return word, number, x * self.scale + self.bias


class InMode(nn.Module):
    def forward(self) -> bool:
        return self.training


class Notes(nn.Module):
    """Remembers what it got, at its owner."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, number: int) -> list[int]:
        self.seen.append(number)
        return self.seen


class Hybrid(nn.Module):
    def __init__(self, remote: RemoteModule) -> None:
        super().__init__()
        self.remote, self.local = remote, nn.Linear(2, 1)

    def forward(self, x: Any) -> Any:
        return self.local(self.remote(x))


class NoModule:
    def __init__(self, *args: Any) -> None:
        self.args = args


class FailsToBegin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        raise OverflowError("no room for it")


@jit.interface
class ScaledInterface:
    def forward(self, x: Any, number: int = 1, word: str = "default") -> Any:
        """See Scaled."""


def made_there(name: str) -> RemoteModule:
    return RemoteModule(f"{name}/cpu", Scaled, (3,))


def forward_of(module: Any, *args: Any) -> Any:
    return module(*args)


def fields_of(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def both_ways(module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return module(*args, **kwargs), module.forward_async(*args, **kwargs).wait()


def test_it_is_at_all_of_pytorchs_places():
    assert dist_nn.RemoteModule is SameModule is RemoteModule
    assert issubclass(RemoteModule, _RemoteModule)
    assert issubclass(RemoteModule, nn.Module)


def test_it_needs_rpc():
    with pytest.raises(RuntimeError, match="RemoteModule only works in RPC"):
        RemoteModule("worker0/cpu", nn.Linear, args=(1, 1))


@on_workers(2)
def test_forward_runs_where_the_module_lies(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1/cpu", Scaled, args=(2,), kwargs={"bias": 1.0})
        x = torch.arange(3.0)
        for word, number, result in both_ways(module, x, 7, word="said"):
            assert (word, number, result.tolist()) == ("said", 7, [1.0, 3.0, 5.0])
        assert module.get_module_rref().owner_name() == "worker1"
        assert "worker1/cpu" in repr(module)


@on_workers(2)
def test_a_worker_may_be_named_by_name_or_rank_with_a_device_or_without(me: Me) -> None:
    if me.rank == 0:
        for where in ("worker1/cpu", "worker1", "rank:1/cpu", "rank:1"):
            module = RemoteModule(where, Scaled, (2,))
            assert module(torch.ones(1))[2].tolist() == [2.0], where
            assert (module.on, module.device) == (1 if "rank" in where else "worker1", "cpu")


@on_workers(2)
def test_a_module_may_lie_here(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker0/cpu", Scaled, (2,))
        for _ in range(3):
            assert [each[2].tolist() for each in both_ways(module, torch.ones(1))] == [[2.0], [2.0]]
        assert module.get_module_rref().is_owner()


@on_workers(2)
def test_many_calls_of_one_module_run_it_in_order_of_their_sending(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", Notes)
        for number in range(20):
            assert module(number) == list(range(number + 1))
        futures = [module.forward_async(20 + number) for number in range(20)]
        assert len(max((future.wait() for future in futures), key=len)) == 40


@on_workers(2)
def test_a_call_under_way_keeps_the_module(me: Me) -> None:
    if me.rank == 0:
        futures = []
        for number in range(20):
            module = RemoteModule("worker1", Notes)
            module(number)
            futures.append((number, module.forward_async(number)))
            del module
        assert [future.wait() for _, future in futures] == [[number] * 2 for number, _ in futures]


@on_workers(2)
def test_gradients_are_wanted_of_results_as_they_are_there(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", nn.Linear, (2, 2))
        assert all(each.requires_grad for each in both_ways(module, torch.ones(1, 2)))
        plain = RemoteModule("worker1", nn.Identity)
        assert not plain(torch.ones(1, 2)).requires_grad
        assert plain(torch.ones(1, 2, requires_grad=True)).requires_grad


@on_workers(2)
def test_remote_parameters_refer_to_those_of_the_module_and_of_its_parts(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", Scaled, (2,))
        found = module.remote_parameters()
        assert [each.to_here().tolist() for each in module.remote_parameters(recurse=False)] == [[2.0]]
        assert [tuple(each.to_here().shape) for each in found] == [(1,), (2, 2), (2,)]
        assert {each.owner_name() for each in found} == {"worker1"}


@on_workers(2)
def test_train_and_eval_reach_the_module(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", InMode)
        assert module() is True
        assert module.eval() is module
        assert (module(), module.training) == (False, False)
        assert module.train() is module
        assert module() is True
        module.train(False)
        assert module() is False


@on_workers(2)
def test_methods_about_what_is_not_here_are_refused_by_name(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", nn.Linear, (1, 1))
        assert len(REFUSED) == 31
        for name in REFUSED:
            with pytest.raises(ValueError, match=f"Method ``{name}`` not supported for RemoteModule"):
                getattr(module, name)()
        with pytest.raises(ValueError, match="Please use ``remote_parameters`` instead"):
            module.parameters()


@on_workers(2)
def test_what_makes_no_module_fails_at_its_first_use(me: Me) -> None:
    if me.rank == 0:
        with pytest.raises(ValueError, match=r"Expect `module_cls\(\*args, \*\*kwargs\)` returns an instance of"):
            RemoteModule("worker1", NoModule, (1, 2))(torch.ones(1))
        with pytest.raises(ValueError, match=r"it returns an instance of .*NoModule"):
            RemoteModule("worker1", NoModule).forward_async().wait()
        with pytest.raises(OverflowError, match="no room for it"):
            RemoteModule("worker1", FailsToBegin).remote_parameters()


@on_workers(2)
def test_what_cannot_be_sent_is_refused_at_once(me: Me) -> None:
    if me.rank == 0:

        class Inner(nn.Module):
            pass

        with pytest.raises(RuntimeError, match="does not serialize function code: define the function at the top of a"):
            RemoteModule("worker1", Inner)
        for wrong in ((3,), ("ab",), ((1, 1), [1])):
            with pytest.raises(TypeError, match="args must be a tuple and kwargs a dict"):
                RemoteModule("worker1", nn.Linear, *wrong)
        with pytest.raises(TypeError, match="module_cls must be a class of modules, got 'Linear'"):
            RemoteModule("worker1", "Linear")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="cannot pickle"):
            RemoteModule("worker1", Scaled, (2,))(iter([]), (each for each in ()))
        with pytest.raises(RuntimeError, match="no worker is called 'worker7'"):
            RemoteModule("worker7", nn.Linear, (1, 1))
        with pytest.raises(UsageError, match="'cpu' names no worker"):
            RemoteModule("cpu", nn.Linear, (1, 1))
        for text in ("a/b/c", "/cpu", "a:b:c/cpu", "rank:x/cpu"):
            with pytest.raises(ValueError, match=f"Could not parse remote_device: {text}"):
                RemoteModule(text, nn.Linear, (1, 1))
        with pytest.raises(TypeError, match="expected an RRef of a module"):
            RemoteModule.init_from_module_rref("worker1", nn.Linear(1, 1))  # type: ignore[arg-type]


@on_workers(2)
def test_it_is_pickled_in_remote_calls_only(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", nn.Linear, (1, 1))
        for way in (pickle.dumps, copy.deepcopy, copy.copy):
            with pytest.raises(RuntimeError, match="RemoteModule can only be pickled when using RPC"):
                way(module)
        with pytest.raises(RuntimeError, match="RemoteModule can only be unpickled when using RPC"):
            module.__setstate__({})


@on_workers(3)
def test_it_is_sent_to_others_who_use_the_same_module(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", Notes)
        assert module(0) == [0]
        assert rpc.rpc_sync("worker1", forward_of, (module, 1)) == [0, 1]
        assert rpc.rpc_sync("worker2", forward_of, (module, 2)) == [0, 1, 2]
        held = rpc.remote("worker2", forward_of, (module, 3))
        del module
        assert held.to_here() == [0, 1, 2, 3]
        come = rpc.rpc_sync("worker2", made_there, ("worker1",))
        assert come(torch.ones(1))[2].tolist() == [3.0]
        assert come.get_module_rref().owner_name() == "worker1"


@on_workers(2)
def test_attributes_of_a_users_own_are_not_sent(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", nn.Linear, (1, 1))
        module.new_attr = 1
        found = rpc.rpc_sync("worker1", fields_of, (module,))
        assert "new_attr" not in found
        assert found["module_rref"].owner_name() == "worker1"
        for name in ("on", "device", "is_device_map_set", "is_scriptable"):
            assert found[name] == getattr(module, name)


@on_workers(3)
def test_several_share_a_module_by_its_rref(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1", Notes)
        other = RemoteModule.init_from_module_rref("worker1/cpu", module.get_module_rref())
        assert type(other) is RemoteModule
        del module
        assert [other(1), other(2)] == [[1], [1, 2]]
        there = rpc.rpc_sync("worker2", RemoteModule.init_from_module_rref, ("worker1", other.get_module_rref()))
        assert there(3) == [1, 2, 3]


@on_workers(2)
def test_a_module_of_modules_may_hold_one(me: Me) -> None:
    if me.rank == 0:
        hybrid = Hybrid(RemoteModule("worker1", nn.Identity))
        x = torch.ones(1, 2)
        assert torch.equal(hybrid(x), hybrid.local(x))
        hybrid = Hybrid(RemoteModule("worker1", nn.Dropout, (0.9,)))
        ones = torch.ones(1, 1000)
        assert hybrid.eval() is hybrid
        assert torch.equal(hybrid.remote(ones), ones)
        hybrid.train()
        assert not torch.equal(hybrid.remote(ones), ones)


@on_workers(2)
def test_an_interface_says_which_arguments_there_are(me: Me) -> None:
    if me.rank == 0:
        module = _RemoteModule("worker1", Scaled, (2,), _module_interface_cls=ScaledInterface)
        assert module.is_scriptable
        assert [each[0] for each in both_ways(module, torch.ones(1), word="said")] == ["said", "said"]
        with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
            module(torch.ones(1), other=1)
        with pytest.raises(TypeError, match="missing a required argument"):
            module.forward_async()
        with pytest.raises(ValueError, match=r"must be a type object decorated by @resilin\.jit\.interface"):
            _RemoteModule("worker1", Scaled, (2,), _module_interface_cls=3)
        shared = RemoteModule.init_from_module_rref("worker1", module.get_module_rref(), ScaledInterface)
        assert rpc.rpc_sync("worker1", forward_of, (shared, torch.ones(1)))[0] == "default"
