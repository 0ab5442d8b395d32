"""Tensors move to shared memory with all tensors over it, and multiprocessing's pickles lead to that memory."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import pickletools
import time
from multiprocessing import reduction

import numpy as np
import pytest

import resilin
import resilin.distributed as dist
import resilin.multiprocessing as mp
from resilin import nn
from resilin.core.machine import segments
from resilin.core.state import copying, shared_pickles, sharing
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks


class Own(resilin.Tensor):
    pass


def names_in(data):
    """What a pickle asks its reader for."""
    strings, names = [], set()
    for op, value, _ in pickletools.genops(data):
        if op.name == "GLOBAL":
            names.add(value)
        elif op.name == "STACK_GLOBAL":
            names.add(" ".join(strings[-2:]))
        elif isinstance(value, str):
            strings.append(value)
    return names


def sent(value):
    """`value` as another process would get it, in this one."""
    return reduction.ForkingPickler.loads(bytes(reduction.ForkingPickler.dumps(value)))


def memory_files():
    gc.collect()
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.path.lexists(link) and "resilin-shared" in os.readlink(link) for link in links)


def comes_to(count):
    """Whether so many are open: a thread of multiprocessing closes what `sent` has duplicated."""
    until = time.monotonic() + PATIENCE_S
    while memory_files() != count and time.monotonic() < until:
        time.sleep(0.001)
    return memory_files() == count


@pytest.mark.parametrize("count", [3, 3000])  # from the heap, and from an arena
def test_all_tensors_over_the_memory_move_with_it(count):
    x = resilin.arange(float(2 * count)).reshape(2, count)
    row, other, parameter = x[1], x.detach(), nn.Parameter(x)
    last = row[-1:]
    aside = resilin.ones(count)
    assert not x.is_shared()
    assert row.share_memory_() is row
    together = (x, row, other, parameter, last, parameter.data, x.untyped_storage())
    assert all(tensor.is_shared() for tensor in together)
    assert not aside.is_shared()
    x.fill_(7.0)
    assert {float(tensor.sum() / tensor.numel()) for tensor in together[:6]} == {7.0}
    assert row.data_ptr() - x.data_ptr() == 4 * count
    assert row.share_memory_().data_ptr() == row.data_ptr()  # once


def test_only_a_tensor_with_company_is_searched_for(monkeypatch):
    monkeypatch.setattr(sharing, "_all_tensors", lambda: pytest.fail("searched"))
    alone = resilin.ones(5)
    alone.share_memory_()
    nn.Linear(3, 4).share_memory()
    company = resilin.ones(5)
    view = company[2:]
    with pytest.raises(pytest.fail.Exception, match="searched"):
        view.share_memory_()


def test_a_graph_and_a_numpy_array_keep_what_they_have():
    x = resilin.tensor([1.0, 2.0], requires_grad=True)
    array = x.detach().numpy()
    y = (x * x).sum()
    x.share_memory_()
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    with resilin.no_grad():
        x.fill_(5.0)
    assert array.tolist() == [1.0, 2.0]


def test_a_module_has_one_file_and_trains_in_it():
    before = memory_files()
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = resilin.optim.Adam(model.parameters(), lr=0.1)
    model(resilin.ones(2, 3)).sum().backward()
    assert model.share_memory() is model
    assert comes_to(before + (1 if segments._WITHOUT_DUPLICATE else 2))
    assert all(tensor.is_shared() for tensor in model.state_dict().values())
    assert all(parameter.grad.is_shared() for parameter in model.parameters())
    again = sent(model)
    optimizer.step()
    model(resilin.ones(2, 3))
    for name, value in model.state_dict().items():
        assert again.state_dict()[name].tolist() == value.tolist()
    del model, again, optimizer, name, value
    assert comes_to(before)
    with pytest.raises(RuntimeError, match="no shape yet"):
        nn.LazyLinear(3).share_memory()


def test_what_is_sent_is_the_same_memory():
    for made in (
        resilin.arange(6.0).reshape(2, 3),
        resilin.arange(6.0).reshape(2, 3).t(),
        resilin.arange(9)[::2],
        resilin.tensor(3.0),
        resilin.ones(2, dtype=resilin.bfloat16),
        resilin.ones(2, dtype=resilin.complex64),
        resilin.ones(2, dtype=resilin.bool),
        nn.Parameter(resilin.ones(3)),
        nn.Buffer(resilin.ones(3)),
        resilin.ones(3).as_subclass(Own),
    ):
        got = sent(made)
        assert made.is_shared()
        assert got.is_shared()
        assert (type(got), got.dtype, got.shape, got.stride()) == (type(made), made.dtype, made.shape, made.stride())
        assert got.requires_grad is made.requires_grad
        assert got.data_ptr() == made.data_ptr()  # a process maps a file once
    assert sent(resilin.ones(0, 3)).shape == (0, 3)


def test_tensors_of_one_message_that_shared_memory_share_it():
    x = resilin.zeros(3, 3)
    whole, row = sent([x, x[1]])
    row.fill_(2.0)
    assert whole.tolist() == x.tolist() == [[0.0] * 3, [2.0] * 3, [0.0] * 3]
    storage = sent(x.untyped_storage())
    assert storage == x.untyped_storage()
    assert x.untyped_storage().share_memory_().is_shared()


def test_other_pickles_and_copies_are_copies():
    x = resilin.ones(3).share_memory_()
    for made in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), x.clone()):
        assert not made.is_shared()
        made.fill_(4.0)
    assert x.tolist() == [1.0] * 3
    assert copy.copy(x).is_shared()
    assert pickle.loads(pickle.dumps(nn.Parameter(x))).tolist() == [1.0] * 3


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_other_pickles_name_what_they_named_before_tensors_were_shared(protocol, monkeypatch):
    x = nn.Parameter(resilin.arange(6.0))
    shared_pickles.register(sharing.share)
    found = pickle.dumps(x, protocol)
    monkeypatch.setattr(copying, "_may_share", False)
    assert names_in(found) == names_in(pickle.dumps(x, protocol))


def test_ranks_exchange_tensors_in_a_process_that_shares_some():
    shared_pickles.register(sharing.share)

    def exchange(rank):
        found = [{"x": resilin.ones(3)} if rank == 0 else None]
        dist.broadcast_object_list(found)
        return found[0]["x"].tolist()

    assert run_ranks(2, exchange).results() == [[1.0, 1.0, 1.0]] * 2


def test_a_computed_tensor_that_requires_grad_is_refused():
    x = resilin.ones(3, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match=r"send tensor.detach\(\)"):
        sent(x)
    assert sent(x.detach()).tolist() == [2.0] * 3


def test_tensors_of_other_devices_are_sent_as_copies():
    x = resilin.ones(3, device="sim:1")
    assert not x.share_memory_().is_shared()
    assert str(sent(x).device) == "sim:1"


def test_gradients_go_to_where_they_were_shared():
    layer = nn.Linear(2, 1)
    layer(resilin.ones(1, 2)).sum().backward()
    layer.share_memory()
    seen = sent(layer.weight.grad)
    layer(resilin.ones(1, 2)).sum().backward()
    assert seen.tolist() == [[2.0, 2.0]]


def test_the_state_of_adagrad_can_be_shared():
    parameter = nn.Parameter(resilin.ones(3))
    optimizer = resilin.optim.Adagrad([parameter], lr=0.1)
    optimizer.share_memory()
    seen = sent(optimizer.state[parameter]["sum"])
    parameter.sum().backward()
    optimizer.step()
    assert seen.tolist() == [1.0] * 3


def test_files_go_with_the_last_array_in_them():
    before = memory_files()
    x = resilin.ones(4).share_memory_()
    array = x[1:].numpy()
    del x
    assert array.tolist() == [1.0] * 3
    assert memory_files() > before
    del array
    assert comes_to(before)


def test_memory_that_cannot_be_had_is_a_memory_error():
    before = memory_files()
    with pytest.raises(MemoryError):
        segments.create(1 << 50)
    assert comes_to(before)


def test_without_files_in_memory_nothing_is_shared(monkeypatch):
    monkeypatch.setattr(segments, "available", False)
    x = resilin.ones(3)
    with pytest.raises(RuntimeError, match="no memfd_create"):
        x.share_memory_()
    got = sent(x)
    got.fill_(2.0)
    assert x.tolist() == [1.0] * 3


def test_a_lost_sender_is_named():
    class Gone:
        def detach(self):
            raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(resilin.errors.ResilinError, match="of process 17 could not be received"):
        shared_pickles._received(Gone(), 17)


def test_names_are_pythons_own_and_pytorchs():
    assert mp.Process is multiprocessing.Process
    assert {*multiprocessing.__all__} < {*mp.__all__}
    assert mp.get_all_sharing_strategies() == {"file_descriptor", "file_system"}
    assert mp.get_sharing_strategy() == "file_descriptor"
    mp.set_sharing_strategy("file_system")
    try:
        assert mp.get_sharing_strategy() == "file_system"
        assert resilin.ones(2).share_memory_().is_shared()
    finally:
        mp.set_sharing_strategy("file_descriptor")
    with pytest.raises(AssertionError, match="invalid sharing strategy 'none'"):
        mp.set_sharing_strategy("none")
    error = mp.ProcessExitedException("text", 1, 17, -9, "SIGKILL")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.error_index, again.error_pid, again.exit_code, again.signal_name) == (
        "text",
        1,
        17,
        -9,
        "SIGKILL",
    )


def test_memory_of_others_moves_only_as_far_as_the_tensor_reaches():
    memory = np.arange(10, dtype=np.float32)
    x = resilin.from_numpy(memory[2:6])
    foreign = resilin.frombuffer(bytearray(memory.tobytes()), dtype=resilin.float32)
    for tensor in (x, foreign[1:3]):
        before = tensor.tolist()
        assert tensor.share_memory_().tolist() == before
