"""Small tensors, and views that reach over little memory: as bytes of the message, with their strides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rpc_functions import identity
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin.rpc.channels.inline import InlineChannel
from resilin.rpc.serialization.messages import SMALL
from resilin.rpc.serialization.serializer import Serializer, load_small_in
from resilin.testing.check_tensor_channel import Receiver

RECEIVER = Receiver(1, "worker1", {"inline": "inline"}, {})
VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "scalar": lambda: torch.tensor(3.0),
    "contiguous": lambda: torch.arange(6.0).reshape(2, 3),
    "expanded": lambda: torch.tensor(2.0).expand(1024),
    "expanded a lot": lambda: torch.arange(3.0).unsqueeze(1).expand(3, 1 << 20),
    "turned": lambda: torch.arange(24.0).reshape(4, 6).t(),
    "column": lambda: torch.arange(24.0).reshape(4, 6)[:, 2],
    "every other": lambda: torch.arange(20, dtype=torch.int16)[1::2],
    "backwards": lambda: torch.from_numpy(torch.arange(5.0).numpy()[::-1]),
    "complex, turned": lambda: torch.ones(2, 3, dtype=torch.complex64).t(),
    "reaching just not too far": lambda: torch.arange(2048.0)[::2047],
}


@pytest.fixture
def serializer() -> Serializer:
    return Serializer([InlineChannel(lambda peer, note: None)], None, False)


@pytest.mark.parametrize("kind", VIEWS)
def test_a_small_view_goes_as_the_bytes_that_it_reaches_over(kind: str, serializer: Serializer) -> None:
    x = VIEWS[kind]()
    data = serializer.dump_small(x, RECEIVER)
    assert data is not None
    assert len(data) < 8192 + 500
    got, _ = serializer.load(SMALL, data, [], 0)
    assert (got.shape, got.stride(), got.dtype) == (x.shape, x.stride(), x.dtype)
    assert torch.equal(got, x)
    assert not got.requires_grad
    (args, kwargs), _ = serializer.load(SMALL, serializer.dump_small_call((1, x, "a"), {}, RECEIVER) or b"", [], 0)
    assert (args[0], args[2], kwargs) == (1, "a", {})
    assert torch.equal(args[1], x)
    there = load_small_in(serializer.dump_small_in((7, [None, x]), 1, RECEIVER) or b"", 1)
    assert there[:1] == (7,)
    assert there[1][0] is None
    assert torch.equal(there[1][1], x)
    before = x.tolist()
    if kind == "turned":
        got[0, 0] = 99.0
        assert x.tolist() == before


def test_what_reaches_over_more_goes_in_blocks(serializer: Serializer) -> None:
    for x in (torch.ones(3000), torch.ones(3000)[::2999], torch.ones(64, 64).t(), torch.ones(0, 3)):
        assert serializer.dump_small(x, RECEIVER) is None
        assert serializer.dump_small_call((x,), {}, RECEIVER) is None
        assert serializer.dump_small_in((1, [x]), 1, RECEIVER) is None


@on_workers(2)
def test_views_come_as_they_lie(me: Me) -> None:
    for make in VIEWS.values():
        x = make()
        for got in (rpc.rpc_sync(me.next, identity, args=(x,)), rpc.rpc_async(me.next, identity, args=(x,)).wait()):
            assert got.stride() == x.stride()
            assert torch.equal(got, x)


quick: list[bool] = []


@on_workers(2)
def test_an_expanded_gradient_takes_the_quick_way(me: Me) -> None:
    """As that of `sum` is: one number, however many elements have been summed."""
    if me.rank == 0:
        say = Serializer.dump_small_in
        x = torch.ones(1024, requires_grad=True)
        with dist_autograd.context() as context_id:
            value = x
            for _ in range(3):
                value = rpc.rpc_sync(me.next, torch.add, args=(value, 1.0))
            quick.clear()
            Serializer.dump_small_in = lambda *args: (quick.append((data := say(*args)) is not None), data)[1]  # type: ignore[method-assign]
            try:
                dist_autograd.backward(context_id, [value.sum()])
            finally:
                Serializer.dump_small_in = say  # type: ignore[method-assign]
            assert dist_autograd.get_gradients(context_id)[x].tolist() == [1.0] * 1024
        assert quick == [True] * 3
