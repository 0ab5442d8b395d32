"""Functions that `jit.script` has decorated are called, and call: nothing is compiled, they are what they were."""

from typing import Any

import pytest
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin import jit
from resilin.futures import Future


@jit.script
def scripted_add(x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return (x + y) * scale


@jit.script
def scripted_raise() -> None:
    raise ValueError("Expected error")


@jit.script
def scripted_call(to: str, x: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_async(to, scripted_add, (x, x), {"scale": 2.0}).wait()


@jit.script
def scripted_use(rref: Any) -> Any:
    return rref.to_here() + 1


@rpc.functions.async_execution
@jit.script
def scripted_async(to: str, x: torch.Tensor) -> Future[torch.Tensor]:
    return rpc.rpc_async(to, scripted_add, (x, x))


@on_workers(2)
def test_a_scripted_function_is_called_in_every_way(me: Me) -> None:
    x = torch.ones(2, 2)
    assert torch.equal(rpc.rpc_sync(me.next, scripted_add, (x, x)), x * 2)
    assert torch.equal(rpc.rpc_async(me.next, scripted_add, (x, x), {"scale": 3.0}).wait(), x * 6)
    rref = rpc.remote(me.next, scripted_add, (x, x))
    assert torch.equal(rref.to_here(), x * 2)
    assert torch.equal(rpc.rpc_sync(me.next, scripted_use, (rref,)), x * 3)
    assert torch.equal(rpc.remote(me.name(me.rank), scripted_add, (x, x)).local_value(), x * 2)


@on_workers(2)
def test_a_scripted_function_calls(me: Me) -> None:
    x = torch.ones(3)
    assert torch.equal(scripted_call(me.next, x), x * 4)
    assert torch.equal(rpc.rpc_sync(me.next, scripted_call, (me.name(me.rank), x)), x * 4)
    assert torch.equal(rpc.rpc_sync(me.next, scripted_async, (me.name(me.rank), x)), x * 2)


@on_workers(2)
def test_an_error_of_a_scripted_function_is_raised_at_its_caller(me: Me) -> None:
    with pytest.raises(ValueError, match="Expected error"):
        rpc.rpc_sync(me.next, scripted_raise)
    with pytest.raises(ValueError, match="Expected error"):
        rpc.remote(me.next, scripted_raise).to_here()
    with pytest.raises(TypeError):
        rpc.rpc_sync(me.next, scripted_add, (torch.ones(1),))
